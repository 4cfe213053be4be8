"""Verbs about which rows stay: eviction of expired ones, and what admission remembers."""

from collections.abc import Iterable, Iterator, Mapping

import torch

from monolith.embedding import checks
from monolith.embedding.calls import TableCalls
from monolith.embedding.retention_checks import check_candidates

__all__ = ["RetentionVerbs"]


class RetentionVerbs(TableCalls):
    """The part of a table that forgets; see `TableVerbs` for the rest."""

    @property
    def latest_time(self) -> int:
        """Largest update time that a writing call or imported row had; 0 after `clear`.

        A restore sets it.
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

        A cut waits for all of it, and later writers wait for the cut; `evict_in_slices` is kinder.

        Args:
            now: the reference in seconds; `latest_time` if None, never the wall clock.

        Returns:
            Number of rows removed; their space is used again.
        """
        reference = self._check_reference(now)
        return self._evict(reference) if self.config.expiry else 0

    def evict_in_slices(self, now: int | None = None) -> Iterator[int]:
        """`evict` as many short calls, one per item; each gives the number of rows it removed.

        A cut may lie between two of them.
        """
        return self._evict_ranges(self._check_reference(now))

    def _check_reference(self, now: int | None) -> int:
        self._check_open("evict")
        given = self.latest_time if now is None else now
        reference = checks.check_integer(self.config, "evict", "now", given)
        checks.check_time(self.config, "evict", reference)
        return reference

    def _evict_ranges(self, reference: int) -> Iterator[int]:
        first: int | None = 0 if self.config.expiry else None
        while first is not None:
            self._check_open("evict")
            num_evicted, first = self._evict_slice(first, reference)
            yield num_evicted

    def export_candidates(self, partitions: Iterable[int] | None = None) -> dict[str, torch.Tensor]:
        """What admission remembers, as int64 columns of equal length. Safe with every verb.

        Args:
            partitions: only these partitions of the key space.

        Returns:
            `MinCount`: key, count, time; by partition, the least recently seen first.
            `SlidingFilter`: partition, split, cell, value of the cells in use, and for each
            partition (split -1) its head and how often that moved. Nothing for `Probabilistic`,
            without admission, and of a serving table.
        """
        self._check_open("export_candidates")
        numbers = checks.check_partitions(self.config, "export_candidates", partitions)
        return self._export_candidates(numbers)

    def import_candidates(self, columns: Mapping[str, torch.Tensor]) -> None:
        """Take over columns of `export_candidates`. Safe with every verb.

        A candidate replaces the table's own of the same key, and counts as seen in this order.
        """
        self._check_open("import_candidates")
        check_candidates(self.config, columns)
        self._import_candidates(dict(columns))
