"""Read and write several tables in one call: fused by the core, or one table after another."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

import torch

from monolith.cluster.shard_split import is_finite
from monolith.ops import Ragged
from monolith.table.base import BaseTable
from monolith.table.config import segments_of
from monolith.table.key_sums import finite_gradients
from monolith.table.native import OpenCore, empty
from monolith.table.precision import OneBit
from monolith.table.rows import Applied


class PerSegment:
    """A number for each segment of some tables: most are fixed, some follow the step.

    A schedule that several segments have is asked once; equal ones are one (`schedules.py`).

    Attributes:
        users: of each different schedule, the segments that have it.

    Example:
        >>> double = lambda step: 2.0 * step
        >>> numbers = PerSegment([0.5, double, double])
        >>> numbers.at(3), numbers.users
        ([0.5, 6.0, 6.0], [[1, 2]])
    """

    def __init__(self, numbers: Sequence[float | Callable[[int], float]]) -> None:
        self._schedules: list[Callable[[int], float]] = []
        self.users: list[list[int]] = []
        fixed: list[float] = []
        known: dict[Hashable, int] = {}
        places = []
        for i, number in enumerate(numbers):
            if callable(number):
                place = known.setdefault(_identity(number), len(self._schedules))
                if place == len(self._schedules):
                    self._schedules.append(number)
                    self.users.append([])
                self.users[place].append(i)
                places.append(place)
            else:
                fixed.append(float(number))
                places.append(-len(fixed))
        self._fixed = fixed[::-1]
        self._places = places  # of each segment: a schedule, or a fixed number from the end

    def at(self, step: int) -> list[float]:
        """The numbers at a step."""
        return self.placed(self.scheduled(step))

    def scheduled(self, step: int) -> list[float]:
        """What each different schedule says."""
        return [schedule(step) for schedule in self._schedules]

    def placed(self, scheduled: list[float]) -> list[float]:
        """The numbers of all segments, where the schedules say this; a new list."""
        if not scheduled:
            return self._fixed[::-1]
        return list(map((scheduled + self._fixed).__getitem__, self._places))


def _identity(schedule: Callable[[int], float]) -> Hashable:
    """Equal ones are one schedule; one without a hash is itself alone."""
    try:
        hash(schedule)
    except TypeError:
        return id(schedule)
    return schedule


class Push(NamedTuple):
    """Gradients of the tables of a group, where each key comes with the sum of its occurrences.

    Attributes:
        keys: int64, a row for each table.
        grads: float32 (num_floats,).
        counts: int32 (num_keys,), number of occurrences of each key, which admission counts.
        is_stepped: bool (tables,), true for every table with keys. A table that is stepped without
            a key counts an update: its keys are on other servers.
        times: int64 (tables,), taken as they are.
        rates: learning rates of all segments.
    """

    keys: Ragged
    grads: torch.Tensor
    counts: torch.Tensor
    is_stepped: torch.Tensor
    times: torch.Tensor
    rates: list[float]


class GroupStorage(ABC):
    """The calls of a `TableGroup`. Rows are flat; rates are those of all segments in order."""

    @abstractmethod
    def lookup(self, keys: Ragged, initial: bool, step: int, threads: int) -> torch.Tensor:
        """`TableGroup.lookup`."""

    @abstractmethod
    def write(self, verb: str, keys: Ragged, values: torch.Tensor, now: int, threads: int) -> None:
        """`TableGroup.assign` or `assign_add`, as the verb says."""

    @abstractmethod
    def apply_gradients(
        self,
        keys: Ragged,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        """`TableGroup.apply_gradients`."""

    @abstractmethod
    def apply_sums(
        self,
        keys: Ragged,
        sums: torch.Tensor,
        counts: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        """`apply_gradients` of a sum for each key; counts: int32 (num_keys,), its occurrences."""

    @abstractmethod
    def pull(self, keys: Ragged, initial: bool, threads: int) -> torch.Tensor:
        """Rows of the keys, where a view sees each table at the number of its updates so far."""

    @abstractmethod
    def push(self, push: Push, threads: int) -> Applied:
        """Make a step of each table that is stepped, at the number of its updates so far."""


def group_storage(tables: list[BaseTable], dims: torch.Tensor) -> GroupStorage:
    """Fused if all tables are native and none records its calls."""
    cores = [getattr(table, "_core", None) for table in tables]
    if all(core is not None for core in cores) and not any(
        getattr(t, "_is_recorded", False) for t in tables
    ):
        return _Fused(tables, dims)
    return _Loop(tables, dims)


class _Loop(GroupStorage):
    """One table after another: the meaning."""

    def __init__(self, tables: list[BaseTable], dims: torch.Tensor) -> None:
        self._tables, self._dims = tables, dims

    def lookup(self, keys: Ragged, initial: bool, step: int, threads: int) -> torch.Tensor:
        parts = zip(
            self._tables, torch.split_with_sizes(keys.values, keys.lengths.tolist()), strict=True
        )
        return torch.cat([t._lookup(part, initial, step, threads).flatten() for t, part in parts])

    def _parts(
        self, keys: Ragged, flat: torch.Tensor
    ) -> Iterator[tuple[BaseTable, torch.Tensor, torch.Tensor]]:
        lengths = keys.lengths
        parts = torch.split_with_sizes(keys.values, lengths.tolist())
        rows = torch.split_with_sizes(flat, (lengths * self._dims).tolist())
        for table, part, row in zip(self._tables, parts, rows, strict=True):
            yield table, part, row.view(-1, table.dim)

    def write(self, verb: str, keys: Ragged, values: torch.Tensor, now: int, threads: int) -> None:
        for table, part, rows in self._parts(keys, values):
            if len(part) and verb == "assign":
                table._assign(part, rows, None, now, threads)
            elif len(part):
                table._assign_add(part, rows, now, threads)

    def apply_gradients(
        self,
        keys: Ragged,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        self._check_finite(keys, grads)
        counts, at = torch.zeros(4, dtype=torch.int64, device="cpu"), 0
        for table, part, rows in self._parts(keys, grads):
            own_rates = rates[at : at + len(segments_of(table.config))]
            at += len(own_rates)
            if len(part):
                own = table._apply_gradients(part, rows, own_rates, step, now, threads)
                counts += torch.tensor(own, device="cpu")
        return Applied(*counts.tolist())

    def apply_sums(
        self,
        keys: Ragged,
        sums: torch.Tensor,
        counts: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        self._check_finite(keys, sums)
        total, at = torch.zeros(4, dtype=torch.int64, device="cpu"), 0
        repeats = torch.split_with_sizes(counts, keys.lengths.tolist())
        for (table, part, rows), numbers in zip(self._parts(keys, sums), repeats, strict=True):
            table_rates = rates[at : at + len(segments_of(table.config))]
            at += len(table_rates)
            if len(part):
                applied = table._apply_sums(part, rows, numbers, table_rates, step, now, threads)
                total += torch.tensor(applied, device="cpu")
        return Applied(*total.tolist())

    def _check_finite(self, keys: Ragged, grads: torch.Tensor) -> None:
        """Refuse a call before the first table changes."""
        if is_finite(grads):
            return
        for table, part, rows in self._parts(keys, grads):
            if table.config.non_finite == "refuse":
                finite_gradients(table.config, part.tolist(), rows.detach().numpy())

    def pull(self, keys: Ragged, initial: bool, threads: int) -> torch.Tensor:
        parts = torch.split_with_sizes(keys.values, keys.lengths.tolist())
        return torch.cat(
            [
                table._lookup(part, initial, table._update_calls(), threads).flatten()
                for table, part in zip(self._tables, parts, strict=True)
            ]
        )

    def push(self, push: Push, threads: int) -> Applied:
        self._check_finite(push.keys, push.grads)
        total, at = torch.zeros(4, dtype=torch.int64, device="cpu"), 0
        counts = torch.split_with_sizes(push.counts, push.keys.lengths.tolist())
        parts = zip(
            self._parts(push.keys, push.grads),
            counts,
            push.is_stepped.tolist(),
            push.times.tolist(),
            strict=True,
        )
        for (table, keys, rows), repeats, is_stepped, now in parts:
            own_rates = push.rates[at : at + len(segments_of(table.config))]
            at += len(own_rates)
            if is_stepped:
                step = table._update_calls()
                own = table._apply_sums(keys, rows, repeats, own_rates, step, now, threads)
                total += torch.tensor(own, device="cpu")
        return Applied(*total.tolist())


class _Fused(GroupStorage):
    """One call of the core, whose threads share the work of all tables."""

    def __init__(self, tables: list[BaseTable], dims: torch.Tensor) -> None:
        import monolith._native as native

        self._tables, self._dims = tables, dims
        self._core = native.TableGroup([table._core for table in tables])  # type: ignore[attr-defined]
        views = [s.view for table in tables for s in segments_of(table.config)]
        scales = {view: view.scale for view in views if isinstance(view, OneBit)}
        self._has_views = bool(scales)
        self._scales = PerSegment([scales[v] if isinstance(v, OneBit) else 1.0 for v in views])

    def lookup(self, keys: Ragged, initial: bool, step: int, threads: int) -> torch.Tensor:
        with OpenCore(self._core, "lookup", owner="TableGroup") as core:
            out = empty(int((keys.lengths * self._dims).sum()))
            scales = self._scales.at(step)
            core.lookup(*_buffers(keys), out.data_ptr(), initial, scales, threads)
        return out

    def write(self, verb: str, keys: Ragged, values: torch.Tensor, now: int, threads: int) -> None:
        with OpenCore(self._core, verb, owner="TableGroup") as core:
            write = core.assign if verb == "assign" else core.assign_add
            write(*_buffers(keys), values.data_ptr(), now, threads)

    def apply_gradients(
        self,
        keys: Ragged,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        with OpenCore(self._core, "apply_gradients", owner="TableGroup") as core:
            buffers = (*_buffers(keys), grads.data_ptr())
            scales = self._scales.at(step)
            counts = core.apply_gradients(*buffers, rates, scales, step, now, threads)
        return Applied(*counts)

    def apply_sums(
        self,
        keys: Ragged,
        sums: torch.Tensor,
        counts: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        """Step tables that ask for admission one after another, and the others in one call."""
        loop = _Loop(self._tables, self._dims)
        loop._check_finite(keys, sums)
        asks = [i for i, table in enumerate(self._tables) if table.config.admission is not None]
        others = sorted(set(range(len(self._tables))) - set(asks))
        values = sums, counts
        part, rows, repeats = without_tables(keys, values, others, self._dims)
        applied = loop.apply_sums(part, rows, repeats, rates, step, now, threads)
        part, rows, _ = without_tables(keys, values, asks, self._dims)
        stepped = self.apply_gradients(part, rows, rates, step, now, threads)
        return Applied(*map(sum, zip(applied, stepped, strict=True)))

    def _own_scales(self) -> list[float]:
        """Scales of the views, each table at the number of its updates so far."""
        if not self._has_views:
            return self._scales.at(0)
        return [
            segment.view.scale(table._update_calls()) if isinstance(segment.view, OneBit) else 1.0
            for table in self._tables
            for segment in segments_of(table.config)
        ]

    def pull(self, keys: Ragged, initial: bool, threads: int) -> torch.Tensor:
        with OpenCore(self._core, "pull", owner="TableGroup") as core:
            out = empty(int((keys.lengths * self._dims).sum()))
            core.lookup(*_buffers(keys), out.data_ptr(), initial, self._own_scales(), threads)
        return out

    def push(self, push: Push, threads: int) -> Applied:
        with OpenCore(self._core, "push", owner="TableGroup") as core:
            counts = core.push(
                *_buffers(push.keys),
                push.grads.data_ptr(),
                push.counts.data_ptr(),
                push.is_stepped.data_ptr(),
                push.times.data_ptr(),
                push.rates,
                self._own_scales(),
                threads,
            )
        return Applied(*counts)


def without_tables(
    keys: Ragged,
    values: tuple[torch.Tensor, torch.Tensor],
    tables: Sequence[int],
    dims: torch.Tensor,
) -> tuple[Ragged, torch.Tensor, torch.Tensor]:
    """Leave out the keys of some tables, with their flat rows and their counts.

    Args:
        keys: a row for each table.
        values: flat rows of the keys, and a number for each key.
        tables: numbers of the tables to leave out.
        dims: width of the rows of each table.
    """
    rows, counts = values
    lengths = keys.lengths
    is_kept = torch.ones(len(lengths), dtype=torch.bool, device="cpu")
    is_kept[list(tables)] = False
    key_is_kept = is_kept.repeat_interleave(lengths)
    float_is_kept = is_kept.repeat_interleave(lengths * dims)
    splits = torch.nn.functional.pad((lengths * is_kept).cumsum(0), (1, 0))
    kept = Ragged._unchecked(keys.values[key_is_kept], splits)
    return kept, rows[float_is_kept], counts[key_is_kept]


def _buffers(keys: Ragged) -> tuple[int, int, int]:
    return keys.values.data_ptr(), keys.values.numel(), keys.row_splits.data_ptr()
