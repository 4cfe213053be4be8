"""Streams that are split into flows, merged, or read together."""

__all__ = []
