"""Give the dense optimizer RMSprop, in its two variants."""

from monolith.optim.rmsprop import RmspropOptimizer

__all__ = [
    "RmspropOptimizer",
]
