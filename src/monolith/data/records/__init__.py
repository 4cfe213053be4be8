"""Records of the reference system: framing, decoding, writing."""

__all__ = []
