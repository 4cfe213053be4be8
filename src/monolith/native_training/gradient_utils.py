"""Give `GradClipType`, the ways to clip gradients."""

from monolith.native_training.util.clipping import GradClipType

__all__ = ["GradClipType"]
