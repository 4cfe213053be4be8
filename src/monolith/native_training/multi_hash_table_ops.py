"""Give `MultiHashTable`, several tables in one call, and its listeners of checkpoints."""

import os

import torch

from monolith.checkpoint import open_checkpoint as _open_checkpoint
from monolith.native_training.saver.listeners import (
    HashTableCheckpointRestorerListener as _HashTableCheckpointRestorerListener,
)
from monolith.native_training.saver.listeners import (
    HashTableCheckpointSaverListener as _HashTableCheckpointSaverListener,
)
from monolith.native_training.tables.multi_hash_table import MultiHashTable as MultiHashTable

MultiHashTableCheckpointSaverListener = _HashTableCheckpointSaverListener
MultiHashTableCheckpointRestorerListener = _HashTableCheckpointRestorerListener


def feature_stat(basename: "str | os.PathLike[str]") -> tuple[list[str], torch.Tensor]:
    """Return the tables of a checkpoint and their numbers of rows, from its manifest alone.

    Args:
        basename: prefix of the checkpoint.

    Returns:
        Names, sorted, and int64 (tables,).
    """
    num_rows = _open_checkpoint(basename).manifest.num_rows
    return list(num_rows), torch.tensor(list(num_rows.values()), dtype=torch.int64, device="cpu")
