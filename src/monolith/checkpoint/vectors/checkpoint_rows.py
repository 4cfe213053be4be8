"""Read the rows of a checkpoint in chunks, with bounded memory and weights as float32."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise

import torch

from monolith.checkpoint.load import Checkpoint
from monolith.errors import NotFoundError
from monolith.table import Table
from monolith.table.codecs import decode
from monolith.table.config import (
    NUM_PARTITIONS,
    TableConfig,
    row_bytes,
    segment_name,
    segments_of,
    storage_of,
)
from monolith.table.disk.contents import config_of, open_plans
from monolith.table.rows import Rows

_PART_BYTES = 1 << 28  # of the rows that are in memory at a time


@dataclass(frozen=True)
class CheckpointTable:
    """A table of a checkpoint.

    Attributes:
        checkpoint: The checkpoint.
        config: Config of the table, with learning rates of 0 in place of functions.
        num_rows: Number of rows.
    """

    checkpoint: Checkpoint
    config: TableConfig
    num_rows: int

    def rows(self, chunk_rows: int = 65536) -> Iterator[Rows]:
        """Yield all rows in ascending order of the hash of their keys; weights are float32.

        A part of the key space is in memory at a time. The rows of a chunk are valid until the next
        chunk is requested.
        """
        num_bytes = self.num_rows * row_bytes(self.config)
        num_parts = min(NUM_PARTITIONS, max(1, -(-num_bytes // _PART_BYTES)))
        bounds = [i * NUM_PARTITIONS // num_parts for i in range(num_parts + 1)]
        for first, end in pairwise(bounds):
            with Table(self.config) as table:
                self.checkpoint.restore_tables(table, partitions=range(first, end))
                for rows in table.export(chunk_rows=chunk_rows):
                    yield decoded(self.config, rows)


def saved_tables(
    checkpoint: Checkpoint, names: Sequence[str] | None = None
) -> list[CheckpointTable]:
    """Return the tables of a checkpoint.

    Args:
        checkpoint: The checkpoint.
        names: Names of the tables; None means all.

    Raises:
        NotFoundError: The checkpoint has no table of a name.
    """
    known = checkpoint.table_names
    for name in names or ():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}"
            raise NotFoundError(
                f"[export] expected a table of {checkpoint.prefix}, got {name!r}; {hint}"
            )
    with open_plans(checkpoint, known if names is None else list(dict.fromkeys(names))) as plans:
        return [
            # Rows that were saved have room here, whatever the machine that trained them had.
            CheckpointTable(checkpoint, replace(config_of(plan), budget=None), plan.num_final_rows)
            for plan in plans.values()
        ]


def decoded(config: TableConfig, rows: Rows) -> Rows:
    """Return rows with weights as float32 in place of the table's storage."""
    columns = dict(rows.columns)
    for i, segment in enumerate(segments_of(config)):
        name = f"weight/{segment_name(config, i)}"
        columns[name] = decode(columns[name].contiguous(), storage_of(config, i), segment.dim)
    return Rows(rows.keys, rows.times, columns)


def joined_weights(config: TableConfig, rows: Rows) -> torch.Tensor:
    """Return the weights of decoded rows with all segments side by side, (n, dim)."""
    names = [f"weight/{segment_name(config, i)}" for i in range(len(segments_of(config)))]
    return torch.cat([rows.columns[name] for name in names], 1)
