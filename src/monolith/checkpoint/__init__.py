"""Checkpoints: a whole run on disk, complete or invisible (docs/checkpoints.md)."""

from monolith.checkpoint.chain import Chain, RestoreMark, Saved
from monolith.checkpoint.commit import remove
from monolith.checkpoint.compact import compact
from monolith.checkpoint.cut import Contents
from monolith.checkpoint.find import checkpoint_exists, existing_checkpoints, find, load
from monolith.checkpoint.load import Checkpoint, open_checkpoint
from monolith.checkpoint.save import WriteOptions, save, write
from monolith.checkpoint.state import read_checkpoint_state
from monolith.table.disk.workers import WriteControl

__all__ = [
    "Chain",
    "Checkpoint",
    "Contents",
    "RestoreMark",
    "Saved",
    "WriteControl",
    "WriteOptions",
    "checkpoint_exists",
    "compact",
    "existing_checkpoints",
    "find",
    "load",
    "open_checkpoint",
    "read_checkpoint_state",
    "remove",
    "save",
    "write",
]
