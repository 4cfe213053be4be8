"""What a save reads: a table at one moment."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from monolith.embedding.config import TableConfig
from monolith.embedding.rows import Rows
from monolith.embedding.verbs import TableVerbs

__all__ = ["Snapshot", "snapshot_of"]


class Snapshot(Protocol):
    """The reading side of a table."""

    @property
    def config(self) -> TableConfig:
        """What the table is."""

    @property
    def num_update_calls(self) -> int:
        """The apply-call number."""

    @property
    def latest_time(self) -> int:
        """Largest update time seen."""

    def __len__(self) -> int: ...

    def export(
        self, partitions: Iterable[int] | None = None, chunk_rows: int = 65536
    ) -> Iterator[Rows]:
        """Rows in chunks, ascending by hash."""

    def export_candidates(self, partitions: Iterable[int] | None = None) -> dict[str, torch.Tensor]:
        """What admission remembers."""


def snapshot_of(table: TableVerbs) -> AbstractContextManager[Snapshot]:
    """The table as it is while it is read: each row at one moment, not all at the same."""
    return nullcontext(table)
