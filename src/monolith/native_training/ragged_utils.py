"""Import path of the reference system; see `monolith.native_training.ops.segment`."""

from monolith.native_training.ops.segment import *  # noqa: F403
