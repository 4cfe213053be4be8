"""Import path of the reference system; see `monolith.optim.adamom`."""

from monolith.optim.adamom import *  # noqa: F403
