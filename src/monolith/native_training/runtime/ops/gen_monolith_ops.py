"""Import path of the reference system: the native ops, as in `gen_monolith_ops_base`."""

from monolith.native_training.runtime.ops.gen_monolith_ops_base import *  # noqa: F403
