"""Give the checkpoint that a job starts from."""

from monolith.checkpoint.storage import isabs as isabs
from monolith.native_training.saver.restore_override import (
    get_checkpoint_state as get_checkpoint_state,
)
