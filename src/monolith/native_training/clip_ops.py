"""Give the clipping of gradients by their global norm."""

from monolith.native_training.util.clipping import clip_by_global_norm, global_norm

__all__ = ["clip_by_global_norm", "global_norm"]
