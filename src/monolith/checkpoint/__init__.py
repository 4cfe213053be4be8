"""Checkpoints: a whole run on disk, complete or invisible (docs/checkpoints.md)."""

from monolith.checkpoint.custom_restore import (
    CLEAR_NN,
    CUSTOM_RESTORE_OP,
    CustomRestore,
    calc_feed_dict,
)
from monolith.checkpoint.cut import CheckpointCut, take_cut
from monolith.checkpoint.files import remove_checkpoint
from monolith.checkpoint.find import existing_checkpoints, find_checkpoint, locate_checkpoint
from monolith.checkpoint.hook import (
    DENSE_ONLY_HOOKS,
    MODEL_DUMP,
    CheckpointRestorerHook,
    NoFirstSaveCheckpointSaverHook,
)
from monolith.checkpoint.listeners import (
    HashTableCheckpointRestorerListener,
    HashTableCheckpointSaverListener,
    RestorerListener,
    SaverListener,
)
from monolith.checkpoint.ps_monitor import PsMonitor
from monolith.checkpoint.reader import Checkpoint, open_checkpoint
from monolith.checkpoint.restore_override import (
    RESTORE_CKPT,
    RestoreSettings,
    copy_checkpoint_state,
    get_checkpoint_state,
)
from monolith.checkpoint.save import save_checkpoint
from monolith.checkpoint.saveables import VARIABLES, NamedTensor, Saveable, Stateful
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
from monolith.checkpoint.state_tree import flatten_state, unflatten_state
from monolith.checkpoint.timer import SecondOrStepTimer, Window

__all__ = [
    "CLEAR_NN",
    "CUSTOM_RESTORE_OP",
    "Checkpoint",
    "CheckpointCut",
    "CheckpointRestorerHook",
    "CheckpointState",
    "CustomRestore",
    "DENSE_ONLY_HOOKS",
    "HashTableCheckpointRestorerListener",
    "HashTableCheckpointSaverListener",
    "HashTableType",
    "MODEL_DUMP",
    "MonolithCheckpointState",
    "NamedTensor",
    "NoFirstSaveCheckpointSaverHook",
    "PartialRecoverySaver",
    "PsMonitor",
    "RESTORE_CKPT",
    "RestoreSettings",
    "RestorerListener",
    "SaveHelper",
    "Saveable",
    "SaverBuilder",
    "SaverListener",
    "SecondOrStepTimer",
    "Stateful",
    "VARIABLES",
    "Window",
    "calc_feed_dict",
    "checkpoint_exists",
    "copy_checkpoint_state",
    "existing_checkpoints",
    "find_checkpoint",
    "flatten_state",
    "get_checkpoint_state",
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
