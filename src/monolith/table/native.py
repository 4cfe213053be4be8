"""`Table`: the verbs of `base.py` on the C++ core (native/table/)."""

import math
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Generic, TypeVar

import torch

import monolith._native as _native
from monolith.errors import FailedPreconditionError
from monolith.table._checks import default_threads
from monolith.table.bags import BagGradients, Bags, GradientSum, PooledRows
from monolith.table.base import BaseTable
from monolith.table.calls import DEFAULT_CHANGES_BYTES, Clock, wall_clock
from monolith.table.codecs import read_weights
from monolith.table.config import TableConfig, column_dtypes, column_sizes, segments_of, storage_of
from monolith.table.eviction import candidate_columns
from monolith.table.initializers import Constant, Initializer, Normal, Uniform
from monolith.table.precision import OneBit, codec_of
from monolith.table.replay import Record, int64_rows
from monolith.table.rows import Applied, Entries, RowMemory, Rows
from monolith.table.rules import Expiry
from monolith.table.snapshot import CutStorage

Core = TypeVar("Core")
_CPU = torch.device("cpu")


class OpenCore(Generic[Core]):
    """Context manager that gives the core, and adds verb and table to an out-of-memory error.

    Args:
        core: core of the table, which lives until the call ends, also if the table is closed.
        verb: verb of the owner.
        name: name of the table; empty for several tables.
        owner: class or module of the call.
    """

    __slots__ = ("_core", "_name", "_owner", "_verb")

    def __init__(self, core: Core, verb: str, name: str = "", *, owner: str = "Table") -> None:
        self._core, self._verb, self._name, self._owner = core, verb, name, owner

    def __enter__(self) -> Core:
        return self._core

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, MemoryError):
            which = f" (table {self._name!r})" if self._name else ""
            raise MemoryError(f"[{self._owner}.{self._verb}] {error}{which}") from error


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return memory for the core to fill, independent of torch's default dtype and device."""
    try:
        return torch.empty(shape, dtype=dtype, device=_CPU)
    except RuntimeError as error:  # torch has no own class for this error on the CPU
        raise _out_of_memory(math.prod(shape) * dtype.itemsize) from error


def empty_rows(num_rows: int, num_columns: int, stride: int) -> torch.Tensor:
    """Return float32 memory whose rows are `stride` values apart; not a view of another tensor."""
    try:
        return torch.empty_strided(
            (num_rows, num_columns), (stride, 1), dtype=torch.float32, device=_CPU
        )
    except RuntimeError as error:
        raise _out_of_memory(num_rows * stride * 4) from error


def _out_of_memory(num_bytes: int) -> MemoryError:
    return MemoryError(f"out of memory: asked for {num_bytes} bytes")


def column_buffers(rows: Rows, names: Iterable[str]) -> tuple[int, list[int], list[int]]:
    """Return the address of the times, the addresses of the named columns, and their row sizes."""
    columns = [rows.columns[name] for name in names]
    sizes = [column.shape[1] * column.element_size() for column in columns]
    return rows.times.data_ptr(), [column.data_ptr() for column in columns], sizes


BagsTuple = tuple[int, int, int, int, str, int]


def address(tensor: torch.Tensor | None) -> int:
    """Return the address of the tensor's first element, or 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def bags_tuple(bags: Bags) -> BagsTuple:
    """Return keys, number of keys, row splits or 0, number of bags, mode, weights."""
    keys, splits = bags.keys, bags.row_splits
    if isinstance(splits, int):
        at, num_bags = 0, splits
    else:
        at, num_bags = splits.data_ptr(), splits.numel() - 1
    return keys.data_ptr(), keys.numel(), at, num_bags, bags.mode, address(bags.weights)


def piece_tuple(piece: BagGradients) -> tuple[BagsTuple, int, int]:
    """Return bags, gradients, winners."""
    return bags_tuple(piece.bags), piece.gradients.data_ptr(), address(piece.winners)


def pool_rows(bags: Bags, rows: torch.Tensor, threads: int, name: str) -> PooledRows:
    """Combine rows to one row for each bag, as `bags.pool` does, in the core.

    Args:
        bags: checked bags.
        rows: row of each key, float32 (num_keys, dim), contiguous.
        threads: most threads to use.
        name: name of the table, for messages.
    """
    dim = rows.shape[1]
    with OpenCore(_native, "lookup_bags", name) as core:
        values, winners = empty(bags.num_bags, dim), None
        if bags.mode == "max":
            winners = empty(bags.num_bags, dim, dtype=torch.int32)
        buffers = rows.data_ptr(), dim, values.data_ptr(), address(winners)
        core.pool_rows(bags_tuple(bags), *buffers, threads)
    return PooledRows(values, winners)


class NativeCut(CutStorage):
    """Cut of the core.

    Args:
        table: the table, which may be closed before the cut.
        core: core of the table, which lives as long as its cuts.
        cut: cut of the core.
    """

    def __init__(self, table: "Table", core: _native.Table, cut: _native.Cut) -> None:
        self.num_rows = cut.num_rows
        self.num_update_calls = cut.num_update_calls
        self.latest_time = cut.latest_time
        self.num_recorded = cut.num_recorded
        self._table, self._core, self._cut = table, core, cut

    def export_chunk(
        self, first: int, last: int, limit: int, memory: RowMemory | None = None
    ) -> Rows:
        """Return rows of the cut."""
        return self._table._export_chunk(first, last, limit, self._cut, memory)

    def changes(self) -> tuple[bool, torch.Tensor, torch.Tensor]:
        """Return the changes up to the cut."""
        return self._table._cut_changes(self._cut)

    def lookup_entry(self, keys: torch.Tensor, memory: RowMemory | None = None) -> Entries:
        """Return rows of the cut."""
        return self._table._lookup_entry(keys, self._cut, memory)

    def lookup(self, keys: torch.Tensor, step: int) -> torch.Tensor:
        """Return weights of the cut."""
        return read_weights(self._table.config, self.lookup_entry(keys), step)

    def export_candidates(self, partitions: list[int]) -> dict[str, torch.Tensor]:
        """Return candidates of the cut."""
        return self._table._export_candidates(partitions, self._cut)

    def release(self, partitions: list[int]) -> None:
        """Release the memory of these partitions."""
        for partition in partitions:
            self._cut.release(partition)

    def close(self, is_read: bool) -> None:
        """Close the cut."""
        self._core.close_cut(self._cut, is_read)


def _changes_of(
    changes: tuple[bool, bytearray, bytearray],
) -> tuple[bool, torch.Tensor, torch.Tensor]:
    """Return the changes that the core has read, as tensors."""
    full, keys, tombstones = changes
    return full, int64_rows(keys, 1)[:, 0], int64_rows(tombstones, 1)[:, 0]


def _bounds(initializer: Initializer) -> tuple[float, float]:
    """Return the bounds of uniform values, or mean and deviation of normal values."""
    if isinstance(initializer, Normal):
        return initializer.mean, initializer.stddev
    if isinstance(initializer, Uniform):
        # Adding 0.0 turns -0.0 into 0.0, as the generator's formula does for equal bounds.
        return initializer.minval + 0.0, initializer.maxval + 0.0
    value = initializer.value if isinstance(initializer, Constant) else 0.0
    return value, value


def _segment_spec(config: TableConfig, index: int) -> _native.SegmentSpec:
    segment = segments_of(config)[index]
    codec = codec_of(storage_of(config, index))
    if config.kind == "serving":  # serving rows have no state and start from zeros
        return _native.SegmentSpec(segment.dim, "sgd", [], (0.0, 0.0), False, codec, ("", 0.0))
    return _native.SegmentSpec(
        segment.dim,
        type(segment.optimizer).__name__.lower(),
        list(segment.optimizer.rule_options().items()),
        _bounds(segment.initializer),
        isinstance(segment.initializer, Normal),
        codec,
        ("", 0.0) if segment.view is None else codec_of(segment.view),
    )


_Slots = list[tuple[int, int]]


def _retention_arguments(
    config: TableConfig,
) -> tuple[tuple[str, int, _Slots, int, int, int, int, bool], tuple[int, _Slots], tuple[int, str]]:
    """Return admission, expiry and budget as arguments of the core; missing options are 0."""
    rule = None if config.kind == "serving" else config.admission
    expiry, budget = config.expiry or Expiry(), config.budget
    admission = (
        type(rule).__name__,
        rule.threshold if rule else 0,
        list(rule.slots.items()) if rule else [],
        getattr(rule, "max_bytes", 0),
        getattr(rule, "ttl_seconds", None) or 0,
        getattr(rule, "capacity", 0),
        getattr(rule, "split_num", 0),
        getattr(rule, "equal_probability", False),
    )
    bound = (budget.max_bytes, budget.policy) if budget else ((1 << 64) - 1, "refuse")
    return admission, (expiry.days, list(expiry.slots.items())), bound


class Table(BaseTable):
    """Table in the memory of this process; `BaseTable` describes the verbs.

    Args:
        config: settings of the table.
        clock: function that returns the time of a call without `now`.
        changes_bytes: bound of the touched log.
        record: recorder of every change, for a replay; slow.

    Example:
        >>> import torch
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Segment, Table, TableConfig, Zeros
        >>> table = Table(TableConfig("user", Segment(2, SGD(0.5), Zeros())))
        >>> table.apply_gradients(torch.tensor([7, -7, 7]), torch.ones(3, 2))
        Applied(num_applied=2, num_inserted=2, num_refused=0, num_skipped=0)
        >>> table.lookup(torch.tensor([7, -7, 8]))
        tensor([[-1.0000, -1.0000],
                [-0.5000, -0.5000],
                [ 0.0000,  0.0000]])
    """

    def __init__(
        self,
        config: TableConfig,
        *,
        clock: Clock = wall_clock,
        changes_bytes: int = DEFAULT_CHANGES_BYTES,
        record: Record | None = None,
    ) -> None:
        super().__init__(config, clock=clock, changes_bytes=changes_bytes)
        assert config.seed is not None
        self._core: _native.Table | None = _native.Table(
            config.name,
            [_segment_spec(config, i) for i in range(len(segments_of(config)))],
            config.seed,
            config.kind == "serving",
            config.non_finite,
            config.clip_value or 0.0,
            *_retention_arguments(config),
            log_bytes=self._changes_bytes,
            records=record is not None,
        )
        self._is_recorded = record is not None
        if record is not None:
            record.attach(self, self._core)
        self._has_views = any(segment.view is not None for segment in segments_of(config))
        self._sizes = column_sizes(config)
        self._dtypes = {name: getattr(torch, d) for name, d in column_dtypes(config).items()}
        self._num_clamped = 0
        self._clamped_lock = threading.Lock()

    def _open(self, verb: str) -> OpenCore[_native.Table]:
        """Return the core for one call; it lives until the call ends, even after `close`."""
        core = self._core
        if core is None:
            raise self._closed_error(verb)
        return OpenCore(core, verb, self.name)

    def _scales(self, step: int) -> list[float]:
        """Return the scales of the segments' views, if there are views."""
        if not self._has_views:
            return []
        views = (segment.view for segment in segments_of(self.config))
        return [view.scale(step) if isinstance(view, OneBit) else 1.0 for view in views]

    def _lookup(self, keys: torch.Tensor, initial: bool, step: int, threads: int) -> torch.Tensor:
        scales = self._scales(step)
        with self._open("lookup") as core:
            out = empty(keys.numel(), self.dim)
            core.lookup(keys.data_ptr(), keys.numel(), out.data_ptr(), initial, scales, threads)
        return out

    def _lookup_bags(self, bags: Bags, initial: bool, step: int, threads: int) -> PooledRows:
        scales = self._scales(step)
        with self._open("lookup_bags") as core:
            values = empty(bags.num_bags, self.dim)
            winners = None
            if bags.mode == "max":
                winners = empty(bags.num_bags, self.dim, dtype=torch.int32)
            core.lookup_bags(
                bags_tuple(bags), values.data_ptr(), address(winners), initial, scales, threads
            )
        return PooledRows(values, winners)

    def _apply_bag_gradients(
        self, summed: GradientSum, rates: list[float], step: int, now: int, threads: int
    ) -> Applied:
        scales = self._scales(step)
        native = summed.core or self._sum_bag_gradients(summed.queue, threads).core
        assert native is not None
        with self._open("apply_bag_gradients") as core:
            counts = core.apply_bag_gradients(native, rates, scales, step, now, threads)
        return Applied(*counts)

    def _step_core(self) -> _native.Table | None:
        # A record sees calls of this object; the scale of a view may depend on the step.
        return None if self._is_recorded or self._has_views else self._core

    def _sum_bag_gradients(self, queue: list[BagGradients], threads: int) -> GradientSum:
        with self._open("sum_bag_gradients") as core:
            summed = core.sum_bag_gradients([piece_tuple(piece) for piece in queue], threads)
        return GradientSum(queue, summed.norm, summed)

    def _bag_weight_gradients(
        self, bags: Bags, gradients: torch.Tensor, initial: bool, step: int, threads: int
    ) -> torch.Tensor:
        scales = self._scales(step)
        with self._open("bag_weight_gradients") as core:
            out = empty(bags.num_keys)
            core.bag_weight_gradients(
                bags_tuple(bags), gradients.data_ptr(), out.data_ptr(), initial, scales, threads
            )
        return out

    def _contains(self, keys: torch.Tensor) -> torch.Tensor:
        with self._open("contains") as core:
            out = empty(keys.numel(), dtype=torch.bool)
            threads = default_threads(keys.numel())
            core.contains(keys.data_ptr(), keys.numel(), out.data_ptr(), threads)
        return out

    def _empty_rows(self, n: int) -> Rows:
        columns = {
            name: empty(n, size, dtype=self._dtypes[name]) for name, size in self._sizes.items()
        }
        return Rows(empty(n, dtype=torch.int64), empty(n, dtype=torch.int64), columns)

    def _lookup_entry(
        self,
        keys: torch.Tensor,
        cut: _native.Cut | None = None,
        memory: RowMemory | None = None,
    ) -> Entries:
        n = keys.numel()
        with self._open("lookup_entry") as core:
            rows = (memory or RowMemory()).of(n, self._empty_rows).head(n)
            present = empty(n, dtype=torch.bool)
            rows.keys.copy_(keys)
            buffers = column_buffers(rows, self._sizes)
            core.entries(keys.data_ptr(), n, present.data_ptr(), *buffers, default_threads(n), cut)
        return Entries(present, rows)

    def _export_chunk(
        self,
        first: int,
        last: int,
        limit: int,
        cut: _native.Cut | None = None,
        memory: RowMemory | None = None,
    ) -> Rows:
        with self._open("export") as core:
            num_rows = min(limit, 1 + (len(core) if cut is None else cut.num_rows))
            rows = (memory or RowMemory()).of(num_rows, self._empty_rows)
            n = core.export_rows(
                first, last, num_rows, rows.keys.data_ptr(), *column_buffers(rows, self._sizes), cut
            )
        return rows.head(n)

    def _lookup_or_insert(
        self, keys: torch.Tensor, step: int, now: int, threads: int
    ) -> torch.Tensor:
        scales = self._scales(step)
        with self._open("lookup_or_insert") as core:
            out = empty(keys.numel(), self.dim)
            core.lookup_or_insert(
                keys.data_ptr(), keys.numel(), out.data_ptr(), scales, now, threads
            )
        return out

    def _assign(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        absent: torch.Tensor | None,
        now: int,
        threads: int,
    ) -> None:
        flags = 0 if absent is None else absent.data_ptr()
        with self._open("assign") as core:
            core.assign(keys.data_ptr(), keys.numel(), values.data_ptr(), now, threads, flags)

    def _assign_add(self, keys: torch.Tensor, values: torch.Tensor, now: int, threads: int) -> None:
        with self._open("assign_add") as core:
            core.assign_add(keys.data_ptr(), keys.numel(), values.data_ptr(), now, threads)

    def _apply_gradients(
        self,
        keys: torch.Tensor,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        scales = self._scales(step)
        with self._open("apply_gradients") as core:
            counts = core.apply_gradients(
                keys.data_ptr(), keys.numel(), grads.data_ptr(), rates, scales, step, now, threads
            )
        return Applied(*counts)

    def _apply_sums(
        self,
        keys: torch.Tensor,
        sums: torch.Tensor,
        counts: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        if self._is_recorded:  # a record sees the calls of every table alike
            return super()._apply_sums(keys, sums, counts, rates, step, now, threads)
        scales = self._scales(step)
        with self._open("apply_gradients") as core:
            applied = core.apply_gradients(
                keys.data_ptr(),
                keys.numel(),
                sums.data_ptr(),
                rates,
                scales,
                step,
                now,
                threads,
                counts.data_ptr(),
            )
        return Applied(*applied)

    def _reinitialize(self, keys: torch.Tensor, now: int) -> torch.Tensor:
        with self._open("reinitialize") as core:
            existed = empty(keys.numel(), dtype=torch.int32)
            threads = default_threads(keys.numel())
            core.reinitialize(keys.data_ptr(), keys.numel(), existed.data_ptr(), now, threads)
        return existed

    def _erase(self, keys: torch.Tensor) -> torch.Tensor:
        with self._open("erase") as core:
            existed = empty(keys.numel(), dtype=torch.bool)
            threads = default_threads(keys.numel())
            core.erase(keys.data_ptr(), keys.numel(), existed.data_ptr(), threads)
        return existed

    def _import_rows(self, rows: Rows, absent: torch.Tensor | None, threads: int) -> None:
        flags = 0 if absent is None else absent.data_ptr()
        with self._open("import_rows") as core:
            buffers = column_buffers(rows, self._sizes)
            core.import_rows(rows.keys.data_ptr(), len(rows), *buffers, threads, flags)

    def _fill_rows(self, rows: Rows) -> None:
        with self._open("import_rows") as core:
            core.fill_rows(rows.keys.data_ptr(), len(rows), *column_buffers(rows, self._sizes))

    def _expect_rows(self, num_rows: int) -> None:
        with self._open("import_rows") as core:
            core.expect_rows(num_rows)

    def _clear(self) -> None:
        with self._open("clear") as core:
            if not core.clear():
                raise self._cut_error()

    def _evict(self, reference: int) -> int:
        with self._open("evict") as core:
            return core.evict(reference)

    def _evict_slice(self, first: int, reference: int) -> tuple[int, int | None]:
        with self._open("evict") as core:
            num_evicted, following = core.evict_slice(first, reference)
        return num_evicted, following or None

    def _export_candidates(
        self, partitions: list[int], cut: _native.Cut | None = None
    ) -> dict[str, torch.Tensor]:
        names = candidate_columns(self.config)
        with self._open("export_candidates") as core:
            rows = int64_rows(core.export_candidates(partitions, cut), max(1, len(names)))
        return {name: rows[:, i].contiguous() for i, name in enumerate(names)}

    def _import_candidates(self, columns: dict[str, torch.Tensor]) -> None:
        names = candidate_columns(self.config)
        if names:
            values = torch.stack([columns[name] for name in names], dim=1)
            with self._open("import_candidates") as core:
                core.import_candidates(values.data_ptr(), len(values))

    def _open_cut(self, cursor: str | None) -> NativeCut | None:
        with self._open("cut") as core:
            try:
                cut = core.open_cut(cursor)
            except OverflowError as error:
                raise FailedPreconditionError(
                    "[Table.cut] expected open cuts to end within 8 million cuts and reads of "
                    f"changes, got one that did not; close it (table {self.name!r})"
                ) from error
            if cut is None:
                return None
            return NativeCut(self, core, cut)

    def _has_cut(self) -> bool:
        with self._open("cut") as core:
            return core.num_cuts > 0

    def _changes(self, cursor: str) -> tuple[bool, torch.Tensor, torch.Tensor]:
        with self._open("changes") as core:
            return _changes_of(core.changes(cursor, torch.get_num_threads()))

    def _cut_changes(self, cut: _native.Cut) -> tuple[bool, torch.Tensor, torch.Tensor]:
        with self._open("changes") as core:
            return _changes_of(core.cut_changes(cut, torch.get_num_threads()))

    def _drop_cursor(self, cursor: str) -> bool:
        with self._open("drop_cursor") as core:
            return core.drop_cursor(cursor)

    def _cursors(self) -> list[str]:
        with self._open("cursors") as core:
            return core.cursors()

    def _num_rows(self) -> int:
        with self._open("len") as core:
            return len(core)

    def _memory_report(self) -> dict[str, int]:
        with self._open("memory_report") as core:
            return core.memory_report()

    def _stats(self) -> dict[str, int]:
        with self._open("stats") as core:
            return {**core.stats(), "num_clamped_times": self._num_clamped}

    def _update_calls(self) -> int:
        with self._open("num_update_calls") as core:
            return core.num_update_calls

    def _set_update_calls(self, number: int) -> None:
        with self._open("num_update_calls") as core:
            core.num_update_calls = number

    def _seen_time(self) -> int:
        with self._open("latest_time") as core:
            return core.latest_time

    def _set_seen_time(self, time: int) -> None:
        with self._open("latest_time") as core:
            core.latest_time = time

    def _count_clamped(self) -> None:
        with self._clamped_lock:
            self._num_clamped += 1

    def _close(self) -> None:
        self._core = None
