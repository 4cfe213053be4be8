"""Import path of the reference system; see `monolith.ops.rowids`."""

from monolith.ops.rowids import *  # noqa: F403
