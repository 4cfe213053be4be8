"""Import path of the reference system; see `monolith.optim.shampoo`."""

from monolith.optim.shampoo import *  # noqa: F403
