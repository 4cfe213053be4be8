"""Optimizers: one `step()` for the dense parameters and the tables of a model."""

from monolith.optim.adamom import AdamomOptimizer
from monolith.optim.clipping import (
    ClippedGradients,
    GradClipType,
    clip_by_global_norm,
    clip_by_norm,
    clip_by_value,
    clip_gradients,
    global_norm,
    warmed_up_norm,
)
from monolith.optim.dense import DenseOptimizer
from monolith.optim.learning_rates import LearningRateFunction, PolynomialDecay, ScheduledRate
from monolith.optim.optimizer import Optimizer
from monolith.optim.rmsprop import RmspropOptimizer
from monolith.optim.shampoo import ShampooOptimizer, apply_sparse_precond, eigen_inverse_root

__all__ = [
    "AdamomOptimizer",
    "ClippedGradients",
    "DenseOptimizer",
    "GradClipType",
    "LearningRateFunction",
    "Optimizer",
    "PolynomialDecay",
    "RmspropOptimizer",
    "ScheduledRate",
    "ShampooOptimizer",
    "apply_sparse_precond",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "clip_gradients",
    "eigen_inverse_root",
    "global_norm",
    "warmed_up_norm",
]
