"""Checkpoints: a whole run on disk, complete or invisible (docs/checkpoints.md)."""

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

__all__ = [
    "CheckpointState",
    "HashTableType",
    "MonolithCheckpointState",
    "SaveHelper",
    "checkpoint_exists",
    "get_latest_checkpoint_state",
    "get_monolith_checkpoint_state",
    "read_checkpoint_state",
    "write_checkpoint_state",
    "write_monolith_checkpoint_state",
]
