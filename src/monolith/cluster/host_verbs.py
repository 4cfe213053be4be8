"""All verbs of hosts and their arguments, which are checked on arrival, before the core sees them.

A verb is added here and as a method: `TableStorage._verb`, or `_do_verb` of the host.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError, MonolithError
from monolith.ops.ragged import check_splits
from monolith.table import _checks as checks
from monolith.table._checks import MAX_THREADS, MAX_TIME, check_training
from monolith.table.config import NUM_PARTITIONS, TableConfig, column_sizes, segments_of
from monolith.table.eviction import check_candidates
from monolith.table.initializers import MAX_FLOAT32
from monolith.table.rows import Rows

MAX_MESSAGE_BYTES = 1 << 34
"""Most bytes of the keys and rows of one call, and of its answer."""

TRANSFERS: Mapping[str, torch.dtype] = MappingProxyType(
    {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
)
"""Dtypes of rows and gradients between client and server, by name."""

_MAX_NAME = 1024  # characters


class HostFacts:
    """The facts about the tables of a host that its checks need.

    Args:
        name: of the tables, for messages.
        configs: of the tables, in the order of their keys; a server itself has none.
        max_message_bytes: most bytes of the keys and whole rows of one call.
    """

    def __init__(
        self, name: str, configs: Sequence[TableConfig], max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self.name, self._configs = name, configs
        self.end = f"(table {name!r})"
        self.names = {config.name for config in configs}
        self.widths = np.array([config.dim for config in configs], dtype=np.int64)
        self.num_rates = sum(len(segments_of(config)) for config in configs)
        self.sizes = {
            "dim": configs[0].dim if configs else 0,
            "tables": len(configs),
            "splits": len(configs) + 1,
        }
        self.max_message_bytes = max_message_bytes
        self.max_floats = max_message_bytes // 4
        sizes = [16 + 8 * sum(column_sizes(config).values()) for config in configs]
        row_bytes = min(sizes, default=16)
        self.max_keys = max(1, min(checks.MAX_BATCH, max_message_bytes // row_bytes))

    @property
    def config(self) -> TableConfig:
        """Config of the first table."""
        return self._configs[0]


class Checked:
    """A call whose arguments are being checked.

    Args:
        facts: of the host.
        start: beginning of the messages, as in "[ShardHost.lookup]".
    """

    __slots__ = ("facts", "lengths", "sizes", "where")

    def __init__(self, facts: HostFacts, start: str) -> None:
        self.facts, self.where = facts, (start, facts.end)
        self.sizes = dict(facts.sizes)
        self.lengths = np.zeros(0, dtype=np.int64)  # number of keys of each table

    def error(self, expected: str, got: object) -> ValueError:
        """The error of an argument, with its values."""
        return ValueError(f"{self.where[0]} expected {expected}, got {short(got)} {self.where[1]}")


class Argument(ABC):
    """An argument of a verb.

    Args:
        name: in messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def _check(self, call: Checked, value: Any) -> None:
        """Refuse a wrong value with `TypeError` or `ValueError`."""


class Tensor(Argument):
    """A contiguous CPU tensor.

    Args:
        name: in messages.
        dtypes: one of these.
        shape: letters of its sizes.
    """

    def __init__(self, name: str, dtypes: tuple[torch.dtype, ...], shape: tuple[str, ...]) -> None:
        super().__init__(name)
        self._dtypes, self._shape = dtypes, shape

    def _check(self, call: Checked, value: Any) -> None:
        dtype = getattr(value, "dtype", None)
        expected = dtype if dtype in self._dtypes else self._dtypes[0]
        assert expected is not None
        checks.check_tensor(call.where, self.name, value, expected, len(self._shape))
        for letter, size in zip(self._shape, value.shape, strict=True):
            if size != call.sizes[letter]:
                sizes = tuple(call.sizes[letter] for letter in self._shape)
                text = f"{self.name} of shape ({', '.join(self._shape)}) = {sizes}"
                raise call.error(text, value.shape)


class Keys(Tensor):
    """The keys of a call, int64 (n,), as many as have rows within the limit of a message."""

    def __init__(self, name: str) -> None:
        super().__init__(name, (torch.int64,), ("n",))

    def _check(self, call: Checked, value: Any) -> None:
        checks.check_tensor(call.where, "keys", value, torch.int64, 1)
        call.sizes["n"] = num_keys = value.numel()
        if num_keys > call.facts.max_keys:
            raise call.error(f"at most {call.facts.max_keys} keys in a message", num_keys)


class Splits(Tensor):
    """Where each table's keys begin and end, int64 (splits,): from 0 to n, never decreasing."""

    def __init__(self, name: str) -> None:
        super().__init__(name, (torch.int64,), ("splits",))

    def _check(self, call: Checked, value: Any) -> None:
        super()._check(call, value)
        splits, num_keys = value.numpy(), call.sizes["n"]
        begins, ends = splits[:-1], splits[1:]
        if splits[0] != 0 or splits[-1] != num_keys or (ends < begins).any():
            check_splits(call.where[0], self.name, value, num_keys)  # says which
        call.lengths = lengths = ends - begins
        call.sizes["floats"] = num_floats = int(lengths @ call.facts.widths)
        if num_floats > call.facts.max_floats:
            raise call.error(f"at most {call.facts.max_floats} floats in a message", num_floats)


class Flags(Tensor):
    """None, or on a table with `skip_zero` bool (n,): keys that lose their row."""

    def __init__(self, name: str) -> None:
        super().__init__(name, (torch.bool,), ("n",))

    def _check(self, call: Checked, value: Any) -> None:
        if value is None:
            return
        if not call.facts.config.skip_zero:
            raise call.error(f"{self.name} as None, as the table keeps rows of zeros", value)
        super()._check(call, value)


class Counts(Tensor):
    """The number of occurrences of each key, int32 (n,): at least 1, of a call in all.

    Args:
        name: in messages.
        is_optional: whether None stands for keys that come once for each occurrence.
    """

    def __init__(self, name: str, *, is_optional: bool = False) -> None:
        super().__init__(name, (torch.int32,), ("n",))
        self._is_optional = is_optional

    def _check(self, call: Checked, value: Any) -> None:
        if value is None and self._is_optional:
            return
        super()._check(call, value)
        least, total = int(value.min()) if value.numel() else 1, int(value.sum())
        if least < 1 or total > checks.MAX_BATCH:
            expected = f"{self.name} from 1 on, and at most {checks.MAX_BATCH} in all"
            raise call.error(expected, least if least < 1 else total)


class Times(Tensor):
    """The time of each table in seconds, int64 (tables,)."""

    def _check(self, call: Checked, value: Any) -> None:
        super()._check(call, value)
        least, most = (int(bound) for bound in torch.aminmax(value))
        if not 0 <= least <= most <= MAX_TIME:
            raise call.error(f"{self.name} in [0, {MAX_TIME}]", least if least < 0 else most)


class Calls(Tensor):
    """The least number of each table's update call, int64 (tables,)."""

    def _check(self, call: Checked, value: Any) -> None:
        super()._check(call, value)
        if int(value.min()) < 0:
            raise call.error(f"{self.name} from 0 on", int(value.min()))


class Dtype(Argument):
    """The name of a dtype of rows on the wire."""

    def _check(self, call: Checked, value: Any) -> None:
        if type(value) is not str or value not in TRANSFERS:
            raise call.error(f"{self.name} as one of {', '.join(TRANSFERS)}", value)


class Stepped(Tensor):
    """Which tables make a step, bool (tables,): every table with keys, and more."""

    def _check(self, call: Checked, value: Any) -> None:
        super()._check(call, value)
        if (call.lengths[~value.numpy()] > 0).any():
            raise call.error(f"{self.name} for every table with keys", value.tolist())


class Integer(Argument):
    """An int in [low, high], with plain numbers or names of earlier arguments as bounds."""

    def __init__(self, name: str, low: int | str, high: int) -> None:
        super().__init__(name)
        self._low, self._high = low, high

    def _check(self, call: Checked, value: Any) -> None:
        low = call.sizes[self._low] if isinstance(self._low, str) else self._low
        if type(value) is not int or not low <= value <= self._high:
            raise call.error(f"{self.name} as an int in [{low}, {self._high}]", value)
        call.sizes[self.name] = value


class Flag(Argument):
    """A bool.

    Args:
        name: in messages.
        in_training: it is False on serving tables.
    """

    def __init__(self, name: str, *, in_training: bool = False) -> None:
        super().__init__(name)
        self._in_training = in_training

    def _check(self, call: Checked, value: Any) -> None:
        if type(value) is not bool:
            raise call.error(f"{self.name} as a bool", value)
        if value and self._in_training and call.facts.config.kind != "training":
            raise call.error(f"{self.name} as False, as the table is a serving one", value)


class Rates(Argument):
    """A list with a learning rate for each segment of all tables."""

    def _check(self, call: Checked, value: Any) -> None:
        expected = call.facts.num_rates
        if type(value) is not list:
            raise call.error(f"{self.name} as a list", value)
        if len(value) != expected:
            raise call.error(
                f"{expected} learning rates, one per segment of all tables", len(value)
            )
        for rate in value:
            if type(rate) not in (float, int) or not 0 <= rate <= MAX_FLOAT32:
                raise call.error(f"learning rates in [0, {MAX_FLOAT32:g}]", rate)


class Name(Argument):
    """A name: of a cursor, or of a table that need not be there.

    Args:
        name: in messages.
        is_optional: whether None stands for no name.
    """

    def __init__(self, name: str, *, is_optional: bool = False) -> None:
        super().__init__(name)
        self._is_optional = is_optional

    def _check(self, call: Checked, value: Any) -> None:
        if value is None and self._is_optional:
            return
        if type(value) is not str or not 1 <= len(value) <= _MAX_NAME:
            raise call.error(f"{self.name} as a name of 1 to {_MAX_NAME} characters", value)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise call.error(f"{self.name} as a name in Unicode", value) from error


class TableNames(Argument):
    """A list of different names of the host's tables."""

    def _check(self, call: Checked, value: Any) -> None:
        if type(value) is not list or not all(type(name) is str for name in value):
            raise call.error(f"{self.name} as a list of names", value)
        if not value:
            return
        unknown = next((name for name in value if name not in call.facts.names), None)
        if unknown is not None:
            raise call.error(f"{self.name} with names of the host's tables", unknown)
        if len(set(value)) < len(value):
            raise call.error(f"{self.name} with different names", value)


class Partitions(Argument):
    """A list of different partitions, ascending."""

    def _check(self, call: Checked, value: Any) -> None:
        if type(value) is not list or not set(map(type, value)) <= {int}:
            raise call.error(f"{self.name} as a list of ints", value)
        if sorted(set(value)) != value:
            raise call.error(f"{self.name} that ascend", value)
        if value and not (value[0] >= 0 and value[-1] < NUM_PARTITIONS):
            bad = value[0] if value[0] < 0 else value[-1]
            raise call.error(f"{self.name} in [0, {NUM_PARTITIONS})", bad)


class RowChunk(Keys):
    """(keys, times, columns) with the columns of the table: whole rows."""

    def _check(self, call: Checked, value: Any) -> None:
        if type(value) is not tuple or len(value) != 3:
            raise call.error(f"{self.name} as a tuple (keys, times, columns)", value)
        super()._check(call, value[0])
        _check_columns(call, value[2])
        checks.check_rows(call.facts.config, Rows(*value))


class Candidates(Argument):
    """The columns of what the table's admission remembers, each int64 of one length."""

    def _check(self, call: Checked, value: Any) -> None:
        _check_columns(call, value)
        check_candidates(call.facts.config, value)
        num_rows = max(map(len, value.values()), default=0)
        if num_rows > call.facts.max_keys:
            raise call.error(f"at most {call.facts.max_keys} candidates in a message", num_rows)


def _check_columns(call: Checked, value: object) -> None:
    if type(value) is not dict or not all(type(name) is str for name in value):
        raise call.error("columns as a dict by name", value)


def short(value: object) -> str:
    """A value for a message, never long: it may have come from anywhere."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, torch.Size):
        return str(tuple(value))
    if isinstance(value, list | tuple | dict | set):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 128:  # Python may refuse to write it
        return f"an int of {value.bit_length()} bits"
    if isinstance(value, str | bytes) and len(value) > 100:
        return f"{value[:100]!r}..."
    return repr(value)[:120]


class Verb:
    """A verb of a host.

    Args:
        arguments: in the order of the call; a check may use the sizes of those before it.
        needs: refuses the tables that cannot do it: (config, name of the verb) -> None.

    Attributes:
        is_write: done once however often the call comes.
        keys_at: number of the argument with the keys of rows; None without such.
    """

    is_write = False

    def __init__(
        self, *arguments: Argument, needs: Callable[[TableConfig, str], None] | None = None
    ) -> None:
        self.arguments, self.needs = arguments, needs
        numbers = [i for i, argument in enumerate(arguments) if isinstance(argument, Keys)]
        self.keys_at = numbers[0] if numbers else None


class Read(Verb):
    """Changes nothing, and may be done again."""


class Write(Verb):
    """Is done once."""

    is_write = True


def _expiry(config: TableConfig, name: str) -> None:
    if config.expiry is None:
        raise FailedPreconditionError(
            f"[ShardHost.{name}] expected a table whose rows expire, got one without expiry "
            f"(table {config.name!r})"
        )


_training = check_training
_MOST = (1 << 63) - 1
_MAX_HASH = (1 << 64) - 1
_F32 = (torch.float32,)

# One table
_KEYS = Keys("keys")  # int64 (n,)
_VALUES = Tensor("values", _F32, ("n", "dim"))
_GRADS = Tensor("grads", _F32, ("n", "dim"))
_COUNTS = Counts("counts")
_ROWS = RowChunk("rows")  # (keys, times, columns), all with n rows
_ABSENT = Flags("absent")  # bool (n,) or None
_INITIAL = Flag("initial", in_training=True)

# Many tables
_SPLITS = Splits("row_splits")  # int64 (splits,)
_FLAT_VALUES = Tensor("values", _F32, ("floats",))
_FLAT_GRADS = Tensor("grads", (torch.float32, torch.float16), ("floats",))
_REPEATS = Counts("counts", is_optional=True)
_IDLE = TableNames("idle")
_SUMS = Tensor("grads", tuple(TRANSFERS.values()), ("floats",))
_CALLS = Calls("calls", (torch.int64,), ("tables",))
_TIMES = Times("times", (torch.int64,), ("tables",))
_STEPPED = Stepped("is_stepped", (torch.bool,), ("tables",))

# Plain values
_RATES = Rates("learning_rates")  # one per segment
_STEP = Integer("step", 0, _MOST)
_NOW = Integer("now", 0, MAX_TIME)
_THREADS = Integer("threads", 1, MAX_THREADS)
_CURSOR = Name("cursor")
_CUT = Integer("cut", 0, _MOST)
_FIRST = Integer("first", 0, _MAX_HASH)
_LAST = Integer("last", "first", _MAX_HASH)
_LIMIT = Integer("limit", 1, _MOST)
_PARTITIONS = Partitions("partitions")

SHARD_VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "contains": Read(_KEYS),
        "cursors": Read(),
        "cut_candidates": Read(_CUT, _PARTITIONS),
        "cut_changes": Read(_CUT),
        "cut_chunk": Read(_CUT, _FIRST, _LAST, _LIMIT),
        "cut_entries": Read(_CUT, _KEYS),
        "cut_lookup": Read(_CUT, _KEYS, _STEP),
        "export_candidates": Read(_PARTITIONS),
        "export_chunk": Read(_FIRST, _LAST, _LIMIT),
        "has_cut": Read(),
        "lookup": Read(_KEYS, _INITIAL, _STEP, _THREADS),
        "lookup_entry": Read(_KEYS),
        "memory_report": Read(),
        "num_rows": Read(),
        "seen_time": Read(),
        "stats": Read(),
        "update_calls": Read(),
        #
        "apply_gradients": Write(_KEYS, _GRADS, _RATES, _STEP, _NOW, _THREADS, needs=_training),
        "apply_sums": Write(_KEYS, _GRADS, _COUNTS, _RATES, _STEP, _NOW, _THREADS, needs=_training),
        "assign": Write(_KEYS, _VALUES, _ABSENT, _NOW, _THREADS),
        "assign_add": Write(_KEYS, _VALUES, _NOW, _THREADS),
        "changes": Write(_CURSOR),
        "clear": Write(),
        "close": Write(),
        "close_cut": Write(_CUT, Flag("is_read")),
        "count_clamped": Write(),
        "drop_cursor": Write(_CURSOR),
        "erase": Write(_KEYS),
        "evict": Write(_NOW, needs=_expiry),
        "evict_slice": Write(_FIRST, _NOW, needs=_expiry),
        "import_candidates": Write(Candidates("candidates")),
        "import_rows": Write(_ROWS, _ABSENT, _THREADS),
        "lookup_or_insert": Write(_KEYS, _STEP, _NOW, _THREADS, needs=_training),
        "open_cut": Write(Name("cursor", is_optional=True)),
        "reinitialize": Write(_KEYS, _NOW, needs=_training),
        "release_cut": Write(_CUT, _PARTITIONS),
        "set_seen_time": Write(_NOW),
        "set_update_calls": Write(Integer("number", 0, _MOST)),
    }
)
"""Verbs of a `ShardHost`."""

GROUP_VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "lookup": Read(_KEYS, _SPLITS, _STEP, Flag("as_float16")),
        "memory_report": Read(),
        "pull": Read(_KEYS, _SPLITS, _INITIAL, Dtype("transfer")),
        "stats": Read(),
        #
        "apply_gradients": Write(
            *(_KEYS, _SPLITS, _FLAT_GRADS, _REPEATS, _IDLE, _RATES, _STEP, _NOW), needs=_training
        ),
        "assign": Write(_KEYS, _SPLITS, _FLAT_VALUES, _IDLE, _NOW),
        "assign_add": Write(_KEYS, _SPLITS, _FLAT_VALUES, _IDLE, _NOW),
        "count_clamped": Write(TableNames("names")),
        "push": Write(
            *(_KEYS, _SPLITS, _SUMS, _COUNTS, _STEPPED, _TIMES, _RATES, _CALLS), needs=_training
        ),
        "reinitialize": Write(Name("name"), _KEYS, _NOW, needs=_training),
    }
)
"""Verbs of a `GroupHost`."""


def check_arguments(
    facts: HostFacts, host: str, name: str, verb: Verb, arguments: tuple[Any, ...]
) -> None:
    """Refuse a call whose arguments are not exactly those of its verb.

    Args:
        facts: of the host.
        host: its class, for messages.
        name: of the verb.
        verb: what is expected.
        arguments: what came.

    Raises:
        InvalidArgumentError: an argument is missing, is one too many, or is not what it must be.
        FailedPreconditionError: the table cannot do the verb.
    """
    call = Checked(facts, f"[{host}.{name}]")
    try:
        if type(arguments) is not tuple or len(arguments) != len(verb.arguments):
            names = ", ".join(argument.name for argument in verb.arguments)
            raise call.error(f"a tuple of {len(verb.arguments)} argument(s) ({names})", arguments)
        for argument, value in zip(verb.arguments, arguments, strict=True):
            argument._check(call, value)
    except MonolithError:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(str(error)) from error
    if verb.needs is not None:
        verb.needs(facts.config, name)
