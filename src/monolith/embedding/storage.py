"""What a table implements. The verbs check the arguments and resolve the times before."""

from abc import ABC, abstractmethod

import torch

from monolith.embedding.cut import CutStorage
from monolith.embedding.rows import Applied, Entries, Rows

__all__ = ["TableStorage"]


class TableStorage(ABC):
    """The methods that store rows; each is the verb of its name, with checked arguments."""

    @abstractmethod
    def _lookup(
        self, keys: torch.Tensor, initial: bool, step: int, threads: int
    ) -> torch.Tensor: ...

    @abstractmethod
    def _contains(self, keys: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _lookup_entry(self, keys: torch.Tensor) -> Entries: ...

    @abstractmethod
    def _export_chunk(self, first: int, last: int, limit: int) -> Rows:
        """At most `limit` rows, the first whose hash is in [first, last], ascending; or none."""

    @abstractmethod
    def _lookup_or_insert(
        self, keys: torch.Tensor, step: int, now: int, threads: int
    ) -> torch.Tensor: ...

    @abstractmethod
    def _assign(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        absent: torch.Tensor | None,
        now: int,
        threads: int,
    ) -> None:
        """absent: bool (n,), keys that get no row and lose the one they have; the last counts."""

    @abstractmethod
    def _assign_add(
        self, keys: torch.Tensor, values: torch.Tensor, now: int, threads: int
    ) -> None: ...

    @abstractmethod
    def _apply_gradients(
        self,
        keys: torch.Tensor,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied: ...

    @abstractmethod
    def _reinitialize(self, keys: torch.Tensor, now: int) -> torch.Tensor: ...

    @abstractmethod
    def _erase(self, keys: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _import_rows(self, rows: Rows, absent: torch.Tensor | None, threads: int) -> None:
        """absent: as of `_assign`."""

    def _fill_rows(self, rows: Rows) -> None:
        """`_import_rows` of a load; if it raises, some rows may be there."""
        self._import_rows(rows, None, 1)

    def _expect_rows(self, num_rows: int) -> None:  # noqa: B027 - a hint that many need not take
        """A hint: so many rows of keys all over will be filled in."""

    @abstractmethod
    def _clear(self) -> None: ...

    @abstractmethod
    def _num_rows(self) -> int: ...

    @abstractmethod
    def _memory_report(self) -> dict[str, int]: ...

    @abstractmethod
    def _stats(self) -> dict[str, int]: ...

    @abstractmethod
    def _count_clamped(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _update_calls(self) -> int: ...

    @abstractmethod
    def _set_update_calls(self, number: int) -> None: ...

    @abstractmethod
    def _seen_time(self) -> int:
        """Largest update time of a call that succeeded, or of an imported row."""

    @abstractmethod
    def _set_seen_time(self, time: int) -> None: ...

    @abstractmethod
    def _evict(self, reference: int) -> int: ...

    @abstractmethod
    def _evict_slice(self, first: int, reference: int) -> tuple[int, int | None]:
        """Evict from the hash `first` on; the number of rows, and where to go on (None: done)."""

    @abstractmethod
    def _export_candidates(self, partitions: list[int]) -> dict[str, torch.Tensor]: ...

    @abstractmethod
    def _import_candidates(self, columns: dict[str, torch.Tensor]) -> None: ...

    @abstractmethod
    def _open_cut(self) -> CutStorage | None:
        """A cut, when running writers have ended; None where four are open."""

    @abstractmethod
    def _has_cut(self) -> bool:
        """Whether a cut is open."""

    @abstractmethod
    def _changes(self, cursor: str) -> tuple[bool, torch.Tensor, torch.Tensor]:
        """Whether the cursor starts anew; keys that changed and are there; keys that are gone."""

    @abstractmethod
    def _drop_cursor(self, cursor: str) -> bool:
        """Whether there was such a cursor."""

    @abstractmethod
    def _cursors(self) -> list[str]: ...
