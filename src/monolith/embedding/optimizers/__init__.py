"""Sparse optimizers: what a segment of a row does with a gradient (docs/optimizers.md)."""

from monolith.embedding.optimizers.adagrad import (
    Adagrad,
    DynamicWdAdagrad,
    GroupAdagrad,
    RowWiseAdagrad,
)
from monolith.embedding.optimizers.base import LearningRate, Optimizer, StateColumn
from monolith.embedding.optimizers.ftrl import FTRL, GroupFTRL
from monolith.embedding.optimizers.moments import Adadelta, Adam, AMSGrad, RMSprop, RMSpropV2
from monolith.embedding.optimizers.plain import SGD, BatchSoftmax, Momentum, MovingAverage

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
    "Momentum",
    "MovingAverage",
    "OPTIMIZERS",
    "Optimizer",
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
"""Every class that has an update rule. A rule goes by the exact class: a subclass has none."""
