"""Import path of the reference system; see `monolith.optim.clipping`."""

from monolith.optim.clipping import GradClipType

__all__ = ["GradClipType"]
