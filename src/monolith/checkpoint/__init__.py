"""Checkpoints: a whole run on disk, complete or invisible (docs/checkpoints.md)."""

from monolith.checkpoint.custom_restore import (
    CLEAR_NN,
    CUSTOM_RESTORE_OP,
    CustomRestore,
    calc_feed_dict,
)
from monolith.checkpoint.cut import CheckpointCut, take_cut
from monolith.checkpoint.files import remove_checkpoint
from monolith.checkpoint.find import existing_checkpoints, find_checkpoint
from monolith.checkpoint.ps_monitor import PsMonitor
from monolith.checkpoint.reader import Checkpoint, open_checkpoint
from monolith.checkpoint.save import save_checkpoint
from monolith.checkpoint.saveables import VARIABLES, NamedTensor, Saveable
from monolith.checkpoint.saver import PartialRecoverySaver
from monolith.checkpoint.saver_builder import SaverBuilder
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
    "CLEAR_NN",
    "CUSTOM_RESTORE_OP",
    "Checkpoint",
    "CheckpointCut",
    "CheckpointState",
    "CustomRestore",
    "HashTableType",
    "MonolithCheckpointState",
    "NamedTensor",
    "PartialRecoverySaver",
    "PsMonitor",
    "SaveHelper",
    "Saveable",
    "SaverBuilder",
    "VARIABLES",
    "calc_feed_dict",
    "checkpoint_exists",
    "existing_checkpoints",
    "find_checkpoint",
    "get_latest_checkpoint_state",
    "get_monolith_checkpoint_state",
    "open_checkpoint",
    "read_checkpoint_state",
    "remove_checkpoint",
    "save_checkpoint",
    "take_cut",
    "write_checkpoint_state",
    "write_monolith_checkpoint_state",
]
