"""Optimizers of rows: update rules for weights and state (docs/optimizers.md)."""

from monolith.table.optimizers.adagrad import (
    Adagrad,
    DynamicWdAdagrad,
    GroupAdagrad,
    RowWiseAdagrad,
)
from monolith.table.optimizers.ftrl import FTRL, GroupFTRL
from monolith.table.optimizers.moments import Adadelta, Adam, AMSGrad, RMSprop, RMSpropV2
from monolith.table.optimizers.optimizer_base import LearningRate, Optimizer, StateColumn
from monolith.table.optimizers.schedules import LearningRateFunction, PolynomialDecay
from monolith.table.optimizers.sgd import SGD, BatchSoftmax, Momentum, MovingAverage

__all__ = [
    "AMSGrad",
    "Adadelta",
    "Adagrad",
    "Adam",
    "BatchSoftmax",
    "DynamicWdAdagrad",
    "FTRL",
    "GroupAdagrad",
    "GroupFTRL",
    "LearningRate",
    "LearningRateFunction",
    "Momentum",
    "MovingAverage",
    "OPTIMIZERS",
    "Optimizer",
    "PolynomialDecay",
    "RMSprop",
    "RMSpropV2",
    "RowWiseAdagrad",
    "SGD",
    "StateColumn",
]

OPTIMIZERS: tuple[type[Optimizer], ...] = (
    AMSGrad,
    Adadelta,
    Adagrad,
    Adam,
    BatchSoftmax,
    DynamicWdAdagrad,
    FTRL,
    GroupAdagrad,
    GroupFTRL,
    Momentum,
    MovingAverage,
    RMSprop,
    RMSpropV2,
    RowWiseAdagrad,
    SGD,
)
"""Every class with an update rule. A rule belongs to the exact class, not to a subclass."""
