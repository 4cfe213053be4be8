"""Embedding tables with any int64 key, trained and served with PyTorch."""

__all__ = ["__version__"]

__version__ = "0.1.0"
