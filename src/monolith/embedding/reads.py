"""The verbs that change nothing: lookups, exports, and facts about the table."""

from collections.abc import Iterable, Iterator

import torch

from monolith.embedding import checks
from monolith.embedding.calls import TableCalls
from monolith.embedding.chunks import export_chunks
from monolith.embedding.rows import Entries, Rows

__all__ = ["ReadVerbs"]


class ReadVerbs(TableCalls):
    """The part of a table that reads; see `TableVerbs` for the rest."""

    def lookup(
        self,
        keys: torch.Tensor,
        *,
        missing: str = "initial",
        step: int = 0,
        num_threads: int | None = None,
    ) -> torch.Tensor:
        """Weights of the keys. Stores nothing. Safe with every verb; readers take no lock.

        Args:
            keys: int64 (n,).
            missing: what a missing key reads as: "initial", the row it would get, or "zeros". A
                serving table reads zeros always, and so does a key that has to ask admission.
            step: training step, for a `OneBit` view.
            num_threads: most threads to use, torch.get_num_threads() if None; a call of few keys
                takes fewer.

        Returns:
            float32 (n, dim).
        """
        self._check_keys("lookup", keys)
        initial = self._check_missing("lookup", missing)
        step = checks.check_step(self.config, "lookup", step)
        threads = checks.check_threads(self.config, "lookup", num_threads, keys.numel())
        return self._lookup(keys, initial, step, threads)

    def contains(self, keys: torch.Tensor) -> torch.Tensor:
        """Whether each key has a row. Safe with every verb.

        Returns:
            bool (n,).
        """
        self._check_keys("contains", keys)
        return self._contains(keys)

    def lookup_entry(self, keys: torch.Tensor) -> Entries:
        """Whole rows of the keys: weights, optimizer state, time. Safe with every verb.

        Returns:
            One entry per key; absent ones are marked absent.
        """
        self._check_keys("lookup_entry", keys)
        return self._lookup_entry(keys)

    def export(
        self,
        partitions: Iterable[int] | None = None,
        chunk_rows: int = 65536,
        after: int | None = None,
    ) -> Iterator[Rows]:
        """All rows in ascending order of their hash, in chunks. Safe with every verb.

        A row that is changed meanwhile is exported as it was at one moment.

        Args:
            partitions: only these partitions.
            chunk_rows: most rows of a chunk.
            after: resume behind this key, the last one of an earlier chunk.
        """
        self._check_open("export")
        return export_chunks(self.config, partitions, chunk_rows, after, self._open_chunk)

    def _open_chunk(self, first: int, last: int, limit: int) -> Rows:
        self._check_open("export")
        return self._export_chunk(first, last, limit)

    # Facts

    def __len__(self) -> int:
        self._check_open("len")
        return self._num_rows()

    def memory_report(self) -> dict[str, int]:
        """Bytes held: of rows, index and candidates, and `total_bytes`. Safe with every verb.

        Beside the total: `cut_bytes`, what open cuts keep; `log_bytes`, of the touched log; and
        `spare_log_bytes`, which the log keeps for its next notes.
        """
        self._check_open("memory_report")
        return self._memory_report()

    @property
    def num_update_calls(self) -> int:
        """Calls of assign, assign_add and apply_gradients so far: the seed of their rounding.

        The apply-call number of files and replay records; a restore sets it.
        """
        self._check_open("num_update_calls")
        return self._update_calls()

    @num_update_calls.setter
    def num_update_calls(self, number: int) -> None:
        self._check_open("num_update_calls")
        if not 0 <= number < 1 << 63:
            raise ValueError(
                f"[Table.num_update_calls] expected a number in [0, 2**63), got {number} "
                f"(table {self.name!r})"
            )
        self._set_update_calls(number)

    def stats(self) -> dict[str, int]:
        """Counters since construction (names: docs/tables.md). Safe with every verb."""
        self._check_open("stats")
        return self._stats()
