"""Import path of the reference system; see `monolith.embedding.schedules`."""

from monolith.embedding.schedules import *  # noqa: F403
