"""Savers and hooks of the reference system's checkpoints."""

from monolith.native_training.saver.custom_restore import (
    CLEAR_NN,
    CUSTOM_RESTORE_OP,
    CustomRestore,
    calc_feed_dict,
)
from monolith.native_training.saver.hook import (
    DENSE_ONLY_HOOKS,
    MODEL_DUMP,
    CheckpointRestorerHook,
    NoFirstSaveCheckpointSaverHook,
)
from monolith.native_training.saver.listeners import (
    HashTableCheckpointRestorerListener,
    HashTableCheckpointSaverListener,
    RestorerListener,
    SaverListener,
)
from monolith.native_training.saver.ps_monitor import PsMonitor
from monolith.native_training.saver.restore_override import (
    RESTORE_CKPT,
    RestoreSettings,
    copy_checkpoint_state,
    get_checkpoint_state,
)
from monolith.native_training.saver.saveables import VARIABLES, NamedTensor, Saveable
from monolith.native_training.saver.saver import PartialRecoverySaver
from monolith.native_training.saver.saver_builder import SaverBuilder
from monolith.native_training.saver.state_files import (
    SaveHelper,
    get_latest_checkpoint_state,
    get_monolith_checkpoint_state,
)
from monolith.native_training.saver.tide import (
    CustomGlobalStepWaiterHook,
    TideStoppingHook,
    TideWindow,
)
from monolith.native_training.saver.timer import SecondOrStepTimer, Window

__all__ = [
    "CLEAR_NN",
    "CUSTOM_RESTORE_OP",
    "CheckpointRestorerHook",
    "CustomGlobalStepWaiterHook",
    "CustomRestore",
    "DENSE_ONLY_HOOKS",
    "HashTableCheckpointRestorerListener",
    "HashTableCheckpointSaverListener",
    "MODEL_DUMP",
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
    "TideStoppingHook",
    "TideWindow",
    "VARIABLES",
    "Window",
    "calc_feed_dict",
    "copy_checkpoint_state",
    "get_checkpoint_state",
    "get_latest_checkpoint_state",
    "get_monolith_checkpoint_state",
]
