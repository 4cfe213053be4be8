"""Hold small helpers: clipping, `Params`, copies of files, addresses, collections of a run."""

from monolith.native_training.util.clipping import (
    ClippedGradients,
    GradClipType,
    clip_by_global_norm,
    clip_by_norm,
    clip_by_value,
    clip_gradients,
    global_norm,
    warmed_up_norm,
)

__all__ = [
    "ClippedGradients",
    "GradClipType",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "clip_gradients",
    "global_norm",
    "warmed_up_norm",
]
