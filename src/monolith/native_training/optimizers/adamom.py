"""Give the dense optimizer Adamom."""

from monolith.optim.adamom import AdamomOptimizer

__all__ = [
    "AdamomOptimizer",
]
