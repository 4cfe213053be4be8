"""Files of samples: Parquet, Arrow, CSV and JSON lines."""

__all__ = []
