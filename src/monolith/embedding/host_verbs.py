"""All verbs of hosts and their arguments, which are checked on arrival, before the core sees them.

A verb is added here and as a method: `TableStorage._verb`, or `_do_verb` of the host.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from monolith.embedding.checks import MAX_THREADS, MAX_TIME, check_training
from monolith.embedding.config import TableConfig
from monolith.embedding.host_arguments import (
    Argument,
    Candidates,
    Checked,
    Flag,
    Flags,
    HostFacts,
    Integer,
    Keys,
    Name,
    Partitions,
    Rates,
    RowChunk,
    Splits,
    TableNames,
    Tensor,
)
from monolith.errors import FailedPreconditionError, InvalidArgumentError, MonolithError

__all__ = ["GROUP_VERBS", "SHARD_VERBS", "Verb", "check_arguments"]


class Verb:
    """A verb of a host.

    Args:
        arguments: in the order of the call; a check may use the sizes of those before it.
        needs: refuses the tables that cannot do it: (config, name of the verb) -> None.

    Attributes:
        is_write: done once however often the call comes.
    """

    is_write = False

    def __init__(
        self, *arguments: Argument, needs: Callable[[TableConfig, str], None] | None = None
    ) -> None:
        self.arguments, self.needs = arguments, needs


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
_ROWS = RowChunk("rows")  # (keys, times, columns), all with n rows
_ABSENT = Flags("absent")  # bool (n,) or None
_INITIAL = Flag("initial", in_training=True)

# Many tables
_SPLITS = Splits("row_splits")  # int64 (splits,)
_FLAT_VALUES = Tensor("values", _F32, ("floats",))
_FLAT_GRADS = Tensor("grads", (torch.float32, torch.float16), ("floats",))
_IDLE = TableNames("idle")

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

SHARD_VERBS: Mapping[str, Verb] = {
    "contains": Read(_KEYS),
    "cursors": Read(),
    "cut_candidates": Read(_CUT, _PARTITIONS),
    "cut_chunk": Read(_CUT, _FIRST, _LAST, _LIMIT),
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
    "assign": Write(_KEYS, _VALUES, _ABSENT, _NOW, _THREADS),
    "assign_add": Write(_KEYS, _VALUES, _NOW, _THREADS),
    "changes": Write(_CURSOR),
    "clear": Write(),
    "close": Write(),
    "close_cut": Write(_CUT),
    "count_clamped": Write(),
    "drop_cursor": Write(_CURSOR),
    "erase": Write(_KEYS),
    "evict": Write(_NOW, needs=_expiry),
    "evict_slice": Write(_FIRST, _NOW, needs=_expiry),
    "import_candidates": Write(Candidates("candidates")),
    "import_rows": Write(_ROWS, _ABSENT, _THREADS),
    "lookup_or_insert": Write(_KEYS, _STEP, _NOW, _THREADS, needs=_training),
    "open_cut": Write(),
    "reinitialize": Write(_KEYS, _NOW, needs=_training),
    "release_cut": Write(_CUT, _PARTITIONS),
    "set_seen_time": Write(_NOW),
    "set_update_calls": Write(Integer("number", 0, _MOST)),
}
"""Verbs of a `ShardHost`."""

GROUP_VERBS: Mapping[str, Verb] = {
    "lookup": Read(_KEYS, _SPLITS, _STEP, Flag("as_float16")),
    #
    "apply_gradients": Write(
        _KEYS, _SPLITS, _FLAT_GRADS, _IDLE, _RATES, _STEP, _NOW, needs=_training
    ),
    "assign": Write(_KEYS, _SPLITS, _FLAT_VALUES, _IDLE, _NOW),
    "assign_add": Write(_KEYS, _SPLITS, _FLAT_VALUES, _IDLE, _NOW),
    "count_clamped": Write(TableNames("names")),
    "reinitialize": Write(Name("name"), _KEYS, _NOW, needs=_training),
}
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
