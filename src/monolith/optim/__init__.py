"""Optimizers: one `step()` for the dense parameters and the tables of a model."""

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
from monolith.optim.optimizer import Optimizer

__all__ = [
    "ClippedGradients",
    "GradClipType",
    "Optimizer",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "clip_gradients",
    "global_norm",
    "warmed_up_norm",
]
