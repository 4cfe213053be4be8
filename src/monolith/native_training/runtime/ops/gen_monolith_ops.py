"""Give the native ops, as `gen_monolith_ops_base` does."""

from monolith.native_training.runtime.ops.gen_monolith_ops_base import *  # noqa: F403
