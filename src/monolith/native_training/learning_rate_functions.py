"""Give the learning rates that are functions of the step."""

from monolith.table.optimizers.schedules import LearningRateFunction, PolynomialDecay

__all__ = [
    "LearningRateFunction",
    "PolynomialDecay",
]
