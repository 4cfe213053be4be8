"""Give the checkpoint that a job starts from."""

from monolith.checkpoint.storage import isabs as isabs
from monolith.native_training.saver.restore_override import (
    gen_get_checkpoint_state as gen_get_checkpoint_state,
)
from monolith.native_training.saver.restore_override import (
    get_checkpoint_state as get_checkpoint_state,
)
