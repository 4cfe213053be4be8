"""Checkpoints: a whole run on disk, complete or invisible (docs/checkpoints.md)."""

from monolith.checkpoint.cut import CheckpointCut, take_cut
from monolith.checkpoint.files import remove_checkpoint
from monolith.checkpoint.find import existing_checkpoints, find_checkpoint, locate_checkpoint
from monolith.checkpoint.load import Checkpoint, open_checkpoint
from monolith.checkpoint.save import save_checkpoint
from monolith.checkpoint.state import (
    CheckpointState,
    HashTableType,
    MonolithCheckpointState,
    SaveHelper,
    checkpoint_exists,
    get_latest_checkpoint_state,
    get_monolith_checkpoint_state,
    read_checkpoint_state,
    write_checkpoint_state,
    write_monolith_checkpoint_state,
)
from monolith.checkpoint.state_tree import flatten_state, unflatten_state

__all__ = [
    "Checkpoint",
    "CheckpointCut",
    "CheckpointState",
    "HashTableType",
    "MonolithCheckpointState",
    "SaveHelper",
    "checkpoint_exists",
    "existing_checkpoints",
    "find_checkpoint",
    "flatten_state",
    "get_latest_checkpoint_state",
    "get_monolith_checkpoint_state",
    "locate_checkpoint",
    "open_checkpoint",
    "read_checkpoint_state",
    "remove_checkpoint",
    "save_checkpoint",
    "take_cut",
    "unflatten_state",
    "write_checkpoint_state",
    "write_monolith_checkpoint_state",
]
