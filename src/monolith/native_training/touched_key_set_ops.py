"""Import path of the reference system; see `monolith.native_training.tables.touched_key_set`."""

from monolith.native_training.tables.touched_key_set import *  # noqa: F403
