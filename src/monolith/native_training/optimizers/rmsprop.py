"""Import path of the reference system; see `monolith.optim.rmsprop`."""

from monolith.optim.rmsprop import *  # noqa: F403
