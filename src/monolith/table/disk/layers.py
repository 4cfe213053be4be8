"""Read tables that are saved in layers: a full save, and the changes since, as one."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.table.config import NUM_PARTITIONS
from monolith.table.disk.block_reader import FileReader
from monolith.table.disk.plan import Source, TablePlan
from monolith.table.disk.ranges import Run
from monolith.table.initializers import key_hashes, partitions_of
from monolith.table.rows import Rows, join_rows


class Layers:
    """Reads the rows of a table over all layers of a plan. For one thread.

    One file of each newer layer is in memory at a time, and one batch of the oldest.

    Args:
        plan: plan of the table.
        reader: reader of the plan's files. Rows of the oldest layer use its memory.
    """

    def __init__(self, plan: TablePlan, reader: FileReader) -> None:
        self._plan, self._reader = plan, reader
        self._newer = [_NewerLayer(plan, reader, i) for i in range(plan.num_layers - 1, 0, -1)]

    @property
    def files(self) -> list[Source]:
        """Files of the oldest layer, which together have all partitions."""
        return self._plan.sources_of("rows", 0)

    def rows(self, source: Source) -> Iterator[Rows]:
        """Yield the rows of a file's partitions as the newest layer has them, in hash order.

        Args:
            source: one of `files`.

        Raises:
            NotFoundError: a file does not exist.
            DataLossError: a file is damaged.
        """
        if not self._newer:
            yield from self._reader.rows(source)
            return
        changed, hidden = self._changes(source.file.partitions)
        hashes = key_hashes(changed.keys.numpy())
        start = 0
        for rows in self._reader.rows(source):
            base_hashes = key_hashes(rows.keys.numpy())
            stays = ~_is_in(base_hashes, hidden)
            end = int(np.searchsorted(hashes, base_hashes[-1:].max(initial=0), "right"))
            end = max(start, end)
            yield _merged(rows.take(torch.from_numpy(stays)), changed, start, end)
            start = end
        if start < len(hashes):
            yield changed.take(torch.arange(start, len(hashes)))

    def _changes(self, partitions: tuple[Run, ...]) -> tuple[Rows, NDArray[np.uint64]]:
        """Return the newest rows that the newer layers have of partitions, in hash order.

        Also the hashes of keys whose rows in the oldest layer do not count, ascending.
        """
        hidden = np.empty(0, np.uint64)
        chunks: list[Rows] = []
        for layer in self._newer:
            rows, removed = layer.of_partitions(partitions)
            for part in rows:
                part_hashes = key_hashes(part.keys.numpy())
                chunks.append(part.take(torch.from_numpy(~_is_in(part_hashes, hidden))))
            gone = [key_hashes(part.keys.numpy()) for part in rows]
            hidden = np.unique(np.concatenate([hidden, key_hashes(removed.numpy()), *gone]))
        return _by_hash(join_rows([self._reader.no_rows(), *chunks])), hidden


class _NewerLayer:
    """Rows and removed keys of a layer after the oldest one; keeps the last file that it read."""

    def __init__(self, plan: TablePlan, reader: FileReader, layer: int) -> None:
        self._reader = reader
        self._row_files = plan.sources_of("rows", layer)
        self._tombstone_files = plan.sources_of("tombstones", layer)
        self._last: dict[str, tuple[Source, Rows | torch.Tensor]] = {}  # by kind

    def of_partitions(self, partitions: tuple[Run, ...]) -> tuple[list[Rows], torch.Tensor]:
        """Return the rows and the removed keys of partitions."""
        is_wanted = np.zeros(NUM_PARTITIONS, np.bool_)
        for first, last in partitions:
            is_wanted[first : last + 1] = True
        chunks = []
        for source in _overlapping(self._row_files, is_wanted):
            rows = self._read(source)
            assert isinstance(rows, Rows)
            chunks.append(rows.take(_wanted(rows.keys, is_wanted)))
        keys = [torch.empty(0, dtype=torch.int64, device="cpu")]
        for source in _overlapping(self._tombstone_files, is_wanted):
            removed = self._read(source)
            assert isinstance(removed, torch.Tensor)
            keys.append(removed[_wanted(removed, is_wanted)])
        return chunks, torch.cat(keys)

    def _read(self, source: Source) -> Rows | torch.Tensor:
        kind = source.file.kind
        if kind not in self._last or self._last[kind][0] is not source:
            self._last.pop(kind, None)  # before the next one takes its memory
            is_keys = kind == "tombstones"
            content = self._reader.tombstones(source) if is_keys else self._copy(source)
            self._last[kind] = source, content
        return self._last[kind][1]

    def _copy(self, source: Source) -> Rows:
        copies = [rows.take(torch.arange(len(rows))) for rows in self._reader.rows(source)]
        return join_rows([self._reader.no_rows(), *copies])


def _overlapping(sources: list[Source], is_wanted: NDArray[np.bool_]) -> list[Source]:
    return [
        source
        for source in sources
        if any(is_wanted[first : last + 1].any() for first, last in source.file.partitions)
    ]


def _wanted(keys: torch.Tensor, is_wanted: NDArray[np.bool_]) -> torch.Tensor:
    return torch.from_numpy(is_wanted[partitions_of(keys.numpy())])


def _is_in(hashes: NDArray[np.uint64], ascending: NDArray[np.uint64]) -> NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(hashes), np.bool_)
    places = np.searchsorted(ascending, hashes)
    is_in: NDArray[np.bool_] = ascending[np.minimum(places, len(ascending) - 1)] == hashes
    return is_in


def _by_hash(rows: Rows) -> Rows:
    return rows.take(torch.from_numpy(np.argsort(key_hashes(rows.keys.numpy()))))


def _merged(rows: Rows, changed: Rows, start: int, end: int) -> Rows:
    if start == end:
        return rows
    part = changed.take(torch.arange(start, end))
    return _by_hash(join_rows([rows, part]))
