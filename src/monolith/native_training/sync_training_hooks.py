"""Give the hooks of synchronous training, and `EofAwareTask`."""

from monolith.native_training.hooks.eof_aware_task import EOF_KEY as EOF_KEY
from monolith.native_training.hooks.eof_aware_task import EofAwareTask as EofAwareTask
from monolith.native_training.hooks.rank_hooks import EofHook as EofHook
from monolith.native_training.hooks.rank_hooks import ParameterSyncHook as ParameterSyncHook
from monolith.native_training.hooks.rank_hooks import (
    ReqTimeControlDumpHook as ReqTimeControlDumpHook,
)
from monolith.native_training.hooks.rank_hooks import (
    SyncTrainingBarrierSaverListener as SyncTrainingBarrierSaverListener,
)
from monolith.native_training.hooks.rank_hooks import (
    SyncTrainingForceDumpHook as SyncTrainingForceDumpHook,
)
from monolith.native_training.hooks.rank_hooks import SyncTrainingInfoHook as SyncTrainingInfoHook
from monolith.native_training.hooks.rank_hooks import (
    SyncTrainingSaverControlHook as SyncTrainingSaverControlHook,
)
from monolith.native_training.hooks.rank_hooks import refresh_sync_config as refresh_sync_config
