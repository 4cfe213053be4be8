"""Samples on their way in: what is still to be read."""

from monolith.data.str_queue import CriticalSection, StrQueue

__all__ = ["CriticalSection", "StrQueue"]
