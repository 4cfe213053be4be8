"""Verbs that remove rows and keep candidates: eviction, and import and export of candidates."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.table import _checks as checks
from monolith.table._checks import MAX_TIME, check_tensor
from monolith.table.calls import TableCalls
from monolith.table.config import NUM_PARTITIONS, TableConfig
from monolith.table.rules import MinCount, SlidingFilter, ring_shape

# numpy, because torch would start several threads in each thread of a load.
Numbers = NDArray[np.int64]

_MAX_INT64 = (1 << 63) - 1
_MAX_UINT32 = (1 << 32) - 1


def candidate_columns(config: TableConfig) -> tuple[str, ...]:
    """Return the names of the columns of `export_candidates`."""
    if config.kind == "serving":
        return ()
    if isinstance(config.admission, MinCount):
        return ("key", "count", "time")
    if isinstance(config.admission, SlidingFilter):
        shard = ("shard",) if config.admission.num_shards > 1 else ()
        return (*shard, "partition", "split", "cell", "value")
    return ()


def check_candidates(config: TableConfig, columns: Mapping[str, torch.Tensor]) -> None:
    """Refuse columns that differ from those of the table's admission, or numbers out of range."""
    if not isinstance(columns, Mapping):
        got = type(columns).__name__
        raise TypeError(
            f"[Table.import_candidates] expected columns by name, got {got} (table {config.name!r})"
        )
    names = candidate_columns(config)
    if set(columns) != set(names):
        raise _error(config, f"columns {sorted(names)}", str(sorted(columns)))
    where = ("[Table.import_candidates]", f"(table {config.name!r})")
    for name in names:
        check_tensor(where, name, columns[name], torch.int64, 1)
    lengths = {name: len(columns[name]) for name in names}
    if len(set(lengths.values())) > 1:
        raise _error(config, "columns of equal length", str(lengths))
    if "count" in names:
        _check_range(config, "count", columns["count"].numpy(), 1, _MAX_UINT32)
        _check_range(config, "time", columns["time"].numpy(), 0, MAX_TIME)
    elif isinstance(config.admission, SlidingFilter) and names:
        numbers = {name: columns[name].numpy() for name in names}
        _check_filter(config, config.admission, numbers)


def _check_filter(config: TableConfig, rule: SlidingFilter, columns: Mapping[str, Numbers]) -> None:
    capacity = rule.of_shard().capacity
    size, _, num_cells = ring_shape(capacity // NUM_PARTITIONS, rule.split_num)
    if rule.num_shards > 1:
        _check_range(config, "shard", columns["shard"], 0, rule.num_shards - 1)
    _check_range(config, "partition", columns["partition"], 0, NUM_PARTITIONS - 1)
    _check_range(config, "split", columns["split"], -1, size - 1)
    is_head = columns["split"] < 0
    cell, value = columns["cell"], columns["value"]
    _check_range(config, "cell of split -1", cell[is_head], 0, size - 1)
    _check_range(config, "value of split -1", value[is_head], 0, _MAX_INT64)
    _check_range(config, "cell", cell[~is_head], 0, num_cells - 1)
    _check_range(config, "value", value[~is_head], 1, _MAX_UINT32)


def _check_range(config: TableConfig, name: str, values: Numbers, low: int, high: int) -> None:
    if len(values) and not (values.min() >= low and values.max() <= high):
        got = f"[{values.min()}, {values.max()}]"
        raise _error(config, f"{name} in [{low}, {high}]", got)


def _error(config: TableConfig, expected: str, got: str) -> ValueError:
    return ValueError(
        f"[Table.import_candidates] expected {expected}, got {got} (table {config.name!r})"
    )


class RetentionVerbs(TableCalls):
    """Verbs that remove rows; see `BaseTable` for all verbs."""

    @property
    def latest_time(self) -> int:
        """Largest update time of a writing call or of an imported row; 0 after `clear`.

        A restore sets this time.
        """
        self._check_open("latest_time")
        return self._seen_time()

    @latest_time.setter
    def latest_time(self, time: int) -> None:
        self._check_open("latest_time")
        checks.check_time(self.config, "latest_time", time)
        self._set_seen_time(time)

    def evict(self, now: int | None = None) -> int:
        """Remove expired rows: reference - time >= days * 86400 (`Expiry`). Safe with every verb.

        A cut waits for the whole call, and later writers wait for the cut; prefer
        `evict_in_slices`.

        Args:
            now: reference in seconds; None means `latest_time`, never the wall clock.

        Returns:
            Number of removed rows, whose memory is reused.
        """
        reference = self._check_reference(now)
        return self._evict(reference) if self.config.expiry else 0

    def evict_in_slices(self, now: int | None = None) -> Iterator[int]:
        """Yield the number of removed rows of each of many short calls that together equal `evict`.

        A cut may lie between two calls.
        """
        return self._evict_ranges(self._check_reference(now))

    def _check_reference(self, now: int | None) -> int:
        self._check_open("evict")
        time = self.latest_time if now is None else now
        reference = checks.check_integer(self.config, "evict", "now", time)
        checks.check_time(self.config, "evict", reference)
        return reference

    def _evict_ranges(self, reference: int) -> Iterator[int]:
        first: int | None = 0 if self.config.expiry else None
        while first is not None:
            self._check_open("evict")
            num_evicted, first = self._evict_slice(first, reference)
            yield num_evicted

    def export_candidates(self, partitions: Iterable[int] | None = None) -> dict[str, torch.Tensor]:
        """Return the state of admission as int64 columns of equal length. Safe with every verb.

        Args:
            partitions: partitions of the key space to return; None means all.

        Returns:
            `MinCount`: key, count, time; by partition, the least recently seen first.
            `SlidingFilter`: partition, split, cell, value of the used cells, and for each partition
            (split -1) its head and the number of its moves; with filters of several shards the
            number of the shard comes first. No columns for `Probabilistic`, without
            admission, and for a serving table.
        """
        self._check_open("export_candidates")
        numbers = checks.check_partitions(self.config, "export_candidates", partitions)
        return self._export_candidates(numbers)

    def import_candidates(self, columns: Mapping[str, torch.Tensor]) -> None:
        """Import columns of `export_candidates`. Safe with every verb.

        A candidate replaces the table's candidate of the same key; the row order is the order of
        sightings.
        """
        self._check_open("import_candidates")
        check_candidates(self.config, columns)
        self._import_candidates(dict(columns))
