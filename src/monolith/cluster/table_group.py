"""`TableGroup`: several tables read and written in one call, packed side by side."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import torch

from monolith.cluster.group_storage import GroupStorage, PerSegment, Push, group_storage
from monolith.cluster.slot_packing import SlotPacking
from monolith.errors import FailedPreconditionError
from monolith.ops import Ragged
from monolith.table import _checks as checks
from monolith.table.base import BaseTable
from monolith.table.config import TableConfig, segments_of
from monolith.table.rows import Applied


class GroupRates:
    """The rate of every segment of some tables at a step; one flat list, in the order given.

    Args:
        configs: of the tables.
        owner: whose rates these are, for messages.
    """

    def __init__(self, configs: Sequence[TableConfig], owner: str = "TableGroup") -> None:
        self._owner = owner
        self._places: dict[str, tuple[TableConfig, int, int]] = {}
        schedules: list[float | Callable[[int], float]] = []
        for config in configs:
            first = len(schedules)
            schedules += [segment.optimizer.schedule for segment in segments_of(config)]
            self._places[config.name] = (config, first, len(schedules))
        self._own = PerSegment(schedules)
        # Of each schedule, the tables that follow it, and the number of the segment in each.
        owners = [(c, i) for c in configs for i in range(len(segments_of(c)))]
        self._users = [[owners[place] for place in users] for users in self._own.users]
        self.num_rates = len(schedules)

    def at(
        self, step: int, learning_rates: Mapping[str, Sequence[float]] | None = None
    ) -> list[float]:
        """The tables' own rates, but for those that are given."""
        given = {} if learning_rates is None else self._checked(learning_rates)
        scheduled = self._own.scheduled(step)
        for i, users in enumerate(self._users):
            # Fixed rates were checked when their optimizers were made.
            user = next((each for each in users if each[0].name not in given), None)
            if user is not None:
                scheduled[i] = checks.check_rate(*user, scheduled[i])
        rates = self._own.placed(scheduled)
        for name, own in given.items():
            config, first, end = self._places[name]
            rates[first:end] = checks.check_rates(config, "apply_gradients", step, own)
        return rates

    def _checked(
        self, learning_rates: Mapping[str, Sequence[float]]
    ) -> Mapping[str, Sequence[float]]:
        """Refuse what is no mapping, and names of other tables."""
        where = f"[{self._owner}.apply_gradients]"
        if not isinstance(learning_rates, Mapping):
            raise TypeError(
                f"{where} expected learning_rates as a mapping by table name, got "
                f"{type(learning_rates).__name__}"
            )
        unknown = sorted(name for name in learning_rates if name not in self._places)
        if unknown:
            raise ValueError(
                f"{where} expected learning rates of the tables, got some of "
                f"{', '.join(unknown)}; the tables are {', '.join(self._places)}"
            )
        return learning_rates


class TableGroup:
    """Tables that are read and updated together, each with keys, rows and rates of its own.

    Keys travel as one `Ragged` with a row for each table, rows and gradients as one flat tensor in
    the same order; the tables come in the order of their names. The work of a call is shared by its
    threads over all tables, and the number of tables costs nothing in Python.

    A call does what the calls of its name on each table would do. It is checked completely before
    the first change; if memory runs out in one table, others may have changed. The group lives as
    long as its tables: when one is closed, its calls are refused.

    Args:
        tables: of one kind, with different names; the clock of the first in order gives the time.

    Attributes:
        tables: by name.

    Example:
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Segment, Table, TableConfig, Zeros
        >>> user = Table(TableConfig("user", Segment(2, SGD(1.0), Zeros())))
        >>> item = Table(TableConfig("item", Segment(1, SGD(1.0), Zeros())))
        >>> group = TableGroup([user, item])
        >>> keys = group.keys({"user": torch.tensor([7]), "item": torch.tensor([7, 8])})
        >>> keys.to_lists()
        [[7, 8], [7]]
        >>> group.apply_gradients(keys, torch.tensor([1.0, 2.0, 3.0, 4.0])).num_applied
        3
        >>> group.unpack(keys, group.lookup(keys))["user"]
        tensor([[-3., -4.]])
    """

    def __init__(self, tables: Iterable[BaseTable]) -> None:
        given = list(tables)
        _check_tables(given)
        by_name = {table.name: table for table in sorted(given, key=lambda table: table.name)}
        self.tables: Mapping[str, BaseTable] = MappingProxyType(by_name)
        self._tables = list(by_name.values())
        self._first = self._tables[0]
        self._order = SlotPacking({table.name: table.dim for table in self._tables})
        self._dims = self._order.widths
        self._rates = GroupRates([table.config for table in self._tables])
        self._storage: GroupStorage | None = group_storage(self._tables, self._dims)
        self._closed: str | None = None
        for table in self._tables:
            table._on_close(self._note_closed)

    def _note_closed(self, name: str) -> None:
        self._closed = name
        self._storage = None  # the core would keep the closed table's memory

    @property
    def is_closed(self) -> bool:
        """Whether one of the tables was closed."""
        return self._storage is None

    def keys(self, ids: Mapping[str, torch.Tensor]) -> Ragged:
        """The keys of some tables, int64 (n,) each, as the calls take them.

        Example:
            >>> from monolith.table import Segment, Table, TableConfig
            >>> group = TableGroup([Table(TableConfig(name, Segment(1))) for name in "ab"])
            >>> group.keys({"b": torch.tensor([7, 8])})
            Ragged(values=tensor([7, 8]), row_splits=tensor([0, 0, 2]))
        """
        unknown = sorted(name for name in ids if name not in self.tables)
        if unknown:
            raise ValueError(
                f"[TableGroup.keys] expected names of the tables, got {', '.join(unknown)}; the "
                f"group has {', '.join(self.tables)}"
            )
        for name, values in ids.items():
            checks.check_tensor(
                ("[TableGroup.keys]", f"(table {name!r})"), "ids", values, torch.int64, 1
            )
        return self._order.keys(ids)

    def unpack(self, keys: Ragged, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """The rows of each table, (n, dim), in what `lookup` gave for the keys; views of it."""
        self._check("unpack", keys)
        self._check_flat("unpack", "flat", flat, keys)
        sizes = (keys.lengths * self._dims).tolist()
        rows = torch.split_with_sizes(flat, sizes)
        parts = zip(self._tables, rows, strict=True)
        return {table.name: part.view(-1, table.dim) for table, part in parts}

    def lookup(
        self,
        keys: Ragged,
        *,
        missing: str = "initial",
        step: int = 0,
        num_threads: int | None = None,
    ) -> torch.Tensor:
        """Weights of the keys, as `Table.lookup` reads them; float32 (num_floats,).

        Args:
            keys: int64, a row for each table.
            missing: what a missing key reads as.
            step: training step, for a `OneBit` view.
            num_threads: most threads to use.
        """
        threads = self._check("lookup", keys, num_threads)
        initial = self._first._check_missing("lookup", missing)
        step = checks.check_step(self._first.config, "lookup", step)
        return self._open("lookup").lookup(keys, initial, step, threads)

    def assign(
        self,
        keys: Ragged,
        values: torch.Tensor,
        *,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Set weights, as `Table.assign` does. values: float32 (num_floats,)."""
        self._write("assign", keys, values, now, num_threads)

    def assign_add(
        self,
        keys: Ragged,
        values: torch.Tensor,
        *,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Add to weights, as `Table.assign_add` does. values: float32 (num_floats,)."""
        self._write("assign_add", keys, values, now, num_threads)

    def _write(
        self,
        verb: str,
        keys: Ragged,
        values: torch.Tensor,
        now: int | None,
        num_threads: int | None,
    ) -> None:
        with self._first_time(verb, now) as time_now:
            self._write_at(verb, keys, values, time_now, num_threads)

    def _write_at(
        self,
        verb: str,
        keys: Ragged,
        values: torch.Tensor,
        time_now: int,
        num_threads: int | None = None,
    ) -> None:
        """`assign` or `assign_add` at a time that is taken as it is."""
        threads = self._check(verb, keys, num_threads)
        self._check_flat(verb, "values", values, keys)
        self._open(verb).write(verb, keys, values, time_now, threads)

    def apply_gradients(
        self,
        keys: Ragged,
        grads: torch.Tensor,
        *,
        step: int = 0,
        learning_rates: Mapping[str, Sequence[float]] | None = None,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> Applied:
        """One optimizer step per distinct key of each table, as `Table.apply_gradients` does.

        Args:
            keys: int64, a row for each table.
            grads: float32 (num_floats,).
            step: training step.
            learning_rates: of some tables, by name, one per segment; the others have their own.
            now: time of the update in seconds.
            num_threads: most threads to use.

        Returns:
            Counts over all tables.
        """
        step = checks.check_step(self._first.config, "apply_gradients", step)
        rates = self._rates.at(step, learning_rates)
        with self._first_time("apply_gradients", now) as time_now:
            return self._apply_at(keys, grads, rates, step, time_now, num_threads=num_threads)

    def _apply_at(
        self,
        keys: Ragged,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        time_now: int,
        *,
        counts: torch.Tensor | None = None,
        num_threads: int | None = None,
    ) -> Applied:
        """`apply_gradients` at a time, with a rate for each segment in the order of names.

        With counts, int32 (num_keys,), each key has the sum of its gradients and its occurrences.
        """
        verb = "apply_gradients"
        threads = self._check(verb, keys, num_threads)
        self._check_flat(verb, "grads", grads, keys)
        checks.check_training(self._first.config, verb)
        if len(rates) != self._rates.num_rates:
            raise ValueError(
                f"[TableGroup.{verb}] expected {self._rates.num_rates} learning rates, one per "
                f"segment of all tables, got {len(rates)}"
            )
        storage = self._open(verb)
        if counts is not None:
            return storage.apply_sums(keys, grads, counts, rates, step, time_now, threads)
        return storage.apply_gradients(keys, grads, rates, step, time_now, threads)

    def _pull(self, keys: Ragged, initial: bool) -> torch.Tensor:
        """The rows of keys that a host has checked."""
        return self._open("pull").pull(keys, initial, checks.default_threads(keys.values.numel()))

    def _push(self, push: Push) -> Applied:
        """A step with arguments that a host has checked. If memory runs out, others have theirs."""
        return self._open("push").push(push, checks.default_threads(push.keys.values.numel()))

    def reinitialize(
        self, name: str, keys: torch.Tensor, *, now: int | None = None
    ) -> torch.Tensor:
        """`Table.reinitialize` of one table; -1 for every key where there is no such table."""
        if name in self.tables:
            return self.tables[name].reinitialize(keys, now=now)
        return self._without_table(keys)

    def _reinitialize_at(self, name: str, keys: torch.Tensor, time_now: int) -> torch.Tensor:
        """`reinitialize` at a time that is taken as it is."""
        if name not in self.tables:
            return self._without_table(keys)
        table = self.tables[name]
        table._check_keys("reinitialize", keys)
        checks.check_training(table.config, "reinitialize")
        return table._reinitialize(keys, time_now)

    def _without_table(self, keys: torch.Tensor) -> torch.Tensor:
        where = ("[TableGroup.reinitialize]", "")
        checks.check_tensor(where, "keys", keys, torch.int64, 1)
        return torch.full((len(keys),), -1, dtype=torch.int32, device="cpu")

    def _open(self, verb: str) -> GroupStorage:
        """What runs a call, also if a table is closed meanwhile."""
        storage = self._storage
        if storage is None:
            raise FailedPreconditionError(
                f"[TableGroup.{verb}] expected open tables, got a closed one (table "
                f"{self._closed!r})"
            )
        return storage

    def _check(self, verb: str, keys: Ragged, num_threads: int | None = None) -> int:
        """Refuse a closed group and wrong keys; the threads of the call."""
        where = f"[TableGroup.{verb}]"
        self._open(verb)
        if not isinstance(keys, Ragged):
            raise TypeError(
                f"{where} expected keys as a Ragged, got {type(keys).__name__}; make one with "
                "TableGroup.keys"
            )
        checks.check_tensor((where, ""), "keys", keys.values, torch.int64, 1)
        checks.check_tensor((where, ""), "row_splits of the keys", keys.row_splits, torch.int64, 1)
        if keys.num_rows != len(self._tables):
            raise ValueError(
                f"{where} expected keys with {len(self._tables)} rows, one per table, got "
                f"{keys.num_rows}"
            )
        num_keys = keys.values.numel()
        checks.check_num_keys(self._first.config, verb, num_keys)
        return checks.check_threads(self._first.config, verb, num_threads, num_keys)

    def _check_flat(self, verb: str, name: str, flat: torch.Tensor, keys: Ragged) -> None:
        where = f"[TableGroup.{verb}]"
        checks.check_tensor((where, ""), name, flat, torch.float32, 1)
        expected = self._num_floats(keys)
        if flat.numel() != expected:
            raise ValueError(
                f"{where} expected {name} with {expected} numbers, the rows of all keys, got "
                f"{flat.numel()}"
            )

    def _num_floats(self, keys: Ragged) -> int:
        return int((keys.lengths * self._dims).sum())

    @contextmanager
    def _first_time(self, verb: str, now: int | None) -> Iterator[int]:
        """The time of a writing call, counted by every table if clamped when it has succeeded."""
        time_now, is_clamped = self._first._resolve_time(verb, now)
        yield time_now
        for table in self._tables if is_clamped else ():
            table._count_clamped()


def _check_tables(tables: list[BaseTable]) -> None:
    """Refuse what cannot be called together."""
    where = "[TableGroup]"
    if not tables:
        raise ValueError(f"{where} expected at least one table, got none")
    for table in tables:
        if not isinstance(table, BaseTable):
            raise TypeError(f"{where} expected tables as Table, got {type(table).__name__}")
        table._check_open("group")
        if table.config.kind != tables[0].config.kind:
            raise ValueError(
                f"{where} expected tables of one kind, got {tables[0].config.kind} (table "
                f"{tables[0].name!r}) and {table.config.kind} (table {table.name!r})"
            )
        if table.config.skip_zero:
            raise ValueError(
                f"{where} expected tables without skip_zero, got one with it (table {table.name!r})"
            )
    twice = [name for name, n in Counter(table.name for table in tables).items() if n > 1]
    if twice:
        raise ValueError(f"{where} expected different names, got several of {', '.join(twice)}")
