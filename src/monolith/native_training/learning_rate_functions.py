"""Import path of the reference system; see `monolith.table.optimizers.schedules`."""

from monolith.table.optimizers.schedules import *  # noqa: F403
