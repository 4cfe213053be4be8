"""The native table: the verbs of `verbs.py` on the C++ core (native/table/)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from monolith import _native
from monolith.embedding.config import TableConfig, column_sizes, segments_of
from monolith.embedding.initializers import Constant, Initializer, Uniform
from monolith.embedding.optimizers import Optimizer
from monolith.embedding.rows import Applied, Entries, Rows
from monolith.embedding.verbs import Clock, TableVerbs, wall_clock

__all__ = ["Table"]


def _bounds(initializer: Initializer) -> tuple[float, float]:
    if isinstance(initializer, Uniform):
        return initializer.minval, initializer.maxval
    value = initializer.value if isinstance(initializer, Constant) else 0.0
    return value, value


def _options(optimizer: Optimizer) -> list[tuple[str, float]]:
    return [(k, float(v)) for k, v in vars(optimizer).items() if k != "learning_rate"]


class Table(TableVerbs):
    """A table in this process's memory; the verbs and their meaning stand in `TableVerbs`.

    Args:
        config: what the table is.
        clock: gives the time of a call that has no `now`.

    Example:
        >>> import torch
        >>> from monolith.embedding import SGD, Segment, Table, TableConfig, Zeros
        >>> table = Table(TableConfig("user", Segment(2, SGD(0.5), Zeros())))
        >>> table.apply_gradients(torch.tensor([7, -7, 7]), torch.ones(3, 2))
        Applied(num_applied=2, num_inserted=2, num_refused=0, num_skipped=0)
        >>> table.lookup(torch.tensor([7, -7, 8]))
        tensor([[-1.0000, -1.0000],
                [-0.5000, -0.5000],
                [ 0.0000,  0.0000]])
    """

    def __init__(self, config: TableConfig, *, clock: Clock = wall_clock) -> None:
        super().__init__(config, clock=clock)
        segments = [
            (s.dim, type(s.optimizer).__name__.lower(), _options(s.optimizer), *_bounds(s.initializer))
            for s in segments_of(config)
        ]
        clip_value = config.clip_value or 0.0
        assert config.seed is not None
        self._native = _native.Table(
            config.name, segments, config.seed, config.non_finite, clip_value
        )
        self._sizes = column_sizes(config)
        self._num_clamped = 0

    @contextmanager
    def _memory_errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:
            raise MemoryError(f"[Table.{verb}] {error} (table {self.name!r})") from error

    def _lookup(self, keys: torch.Tensor, initial: bool, threads: int) -> torch.Tensor:
        out = torch.empty(len(keys), self.dim)
        self._native.lookup(keys.data_ptr(), len(keys), out.data_ptr(), initial, threads)
        return out

    def _contains(self, keys: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(keys), dtype=torch.bool)
        self._native.contains(keys.data_ptr(), len(keys), out.data_ptr())
        return out

    def _empty_rows(self, keys: torch.Tensor) -> tuple[Rows, list[int]]:
        n = len(keys)
        columns = {name: torch.empty(n, size) for name, size in self._sizes.items()}
        rows = Rows(keys, torch.empty(n, dtype=torch.int64), columns)
        return rows, [column.data_ptr() for column in columns.values()]

    def _lookup_entry(self, keys: torch.Tensor) -> Entries:
        rows, addresses = self._empty_rows(keys)
        present = torch.empty(len(keys), dtype=torch.bool)
        self._native.entries(
            keys.data_ptr(),
            len(keys),
            present.data_ptr(),
            rows.times.data_ptr(),
            addresses,
            list(self._sizes.values()),
        )
        return Entries(present, rows)

    def _export_chunk(self, first: int, last: int, limit: int) -> Rows:
        limit = min(limit, max(1, len(self._native)))
        rows, addresses = self._empty_rows(torch.empty(limit, dtype=torch.int64))
        n = self._native.export_rows(
            first,
            last,
            limit,
            rows.keys.data_ptr(),
            rows.times.data_ptr(),
            addresses,
            list(self._sizes.values()),
        )
        return Rows(rows.keys[:n], rows.times[:n], {k: v[:n] for k, v in rows.columns.items()})

    def _lookup_or_insert(self, keys: torch.Tensor, now: int, threads: int) -> torch.Tensor:
        out = torch.empty(len(keys), self.dim)
        with self._memory_errors("lookup_or_insert"):
            self._native.lookup_or_insert(
                keys.data_ptr(), len(keys), out.data_ptr(), now, threads
            )
        return out

    def _assign(self, keys: torch.Tensor, values: torch.Tensor, now: int, threads: int) -> None:
        with self._memory_errors("assign"):
            self._native.assign(keys.data_ptr(), len(keys), values.data_ptr(), now, threads)

    def _assign_add(self, keys: torch.Tensor, values: torch.Tensor, now: int, threads: int) -> None:
        with self._memory_errors("assign_add"):
            self._native.assign_add(keys.data_ptr(), len(keys), values.data_ptr(), now, threads)

    def _apply_gradients(
        self,
        keys: torch.Tensor,
        grads: torch.Tensor,
        rates: list[float],
        now: int,
        threads: int,
    ) -> Applied:
        with self._memory_errors("apply_gradients"):
            counts = self._native.apply_gradients(
                keys.data_ptr(), len(keys), grads.data_ptr(), rates, now, threads
            )
        return Applied(*counts)

    def _reinitialize(self, keys: torch.Tensor, now: int) -> torch.Tensor:
        existed = torch.empty(len(keys), dtype=torch.int32)
        with self._memory_errors("reinitialize"):
            self._native.reinitialize(keys.data_ptr(), len(keys), existed.data_ptr(), now)
        return existed

    def _erase(self, keys: torch.Tensor) -> torch.Tensor:
        existed = torch.empty(len(keys), dtype=torch.bool)
        with self._memory_errors("erase"):
            self._native.erase(keys.data_ptr(), len(keys), existed.data_ptr())
        return existed

    def _import_rows(self, rows: Rows) -> None:
        addresses = [rows.columns[name].data_ptr() for name in self._sizes]
        with self._memory_errors("import_rows"):
            self._native.import_rows(
                rows.keys.data_ptr(),
                len(rows),
                rows.times.data_ptr(),
                addresses,
                list(self._sizes.values()),
            )

    def _clear(self) -> None:
        with self._memory_errors("clear"):
            self._native.clear()

    def _num_rows(self) -> int:
        return len(self._native)

    def _memory_report(self) -> dict[str, int]:
        return self._native.memory_report()

    def _stats(self) -> dict[str, int]:
        return {**self._native.stats(), "num_clamped_times": self._num_clamped}

    def _count_clamped(self) -> None:
        self._num_clamped += 1

    def _close(self) -> None:
        self._native = _native.Table(self.name, [], 0, "refuse", 0.0)
