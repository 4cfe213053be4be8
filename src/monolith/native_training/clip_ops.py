"""Import path of the reference system; see `monolith.optim.clipping`."""

from monolith.optim.clipping import clip_by_global_norm, global_norm

__all__ = ["clip_by_global_norm", "global_norm"]
