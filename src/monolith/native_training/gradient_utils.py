"""Import path of the reference system; see `monolith.native_training.util.clipping`."""

from monolith.native_training.util.clipping import GradClipType

__all__ = ["GradClipType"]
