"""Optimizers: one `step()` for the dense parameters and the tables of a model."""

from monolith.optim.adamom import AdamomOptimizer
from monolith.optim.dense import DenseOptimizer
from monolith.optim.learning_rates import ScheduledRate
from monolith.optim.optimizer import Optimizer
from monolith.optim.rmsprop import RmspropOptimizer
from monolith.optim.shampoo import ShampooOptimizer
from monolith.table.optimizers.schedules import LearningRateFunction, PolynomialDecay

__all__ = [
    "AdamomOptimizer",
    "DenseOptimizer",
    "LearningRateFunction",
    "Optimizer",
    "PolynomialDecay",
    "RmspropOptimizer",
    "ScheduledRate",
    "ShampooOptimizer",
]
