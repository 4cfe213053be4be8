"""Import path of the reference system: which checkpoint a job starts from."""

from monolith.checkpoint import get_checkpoint_state as get_checkpoint_state
from monolith.checkpoint.storage import isabs as isabs
