"""Give the queue of files that workers share out while they read."""

from collections.abc import Sequence

from monolith.data import FileQueue

__all__ = ["create_dynamic_sharding_dataset"]


def create_dynamic_sharding_dataset(
    glob_patterns: Sequence[str], name: str = "dynamic_sharding_dataset"
) -> FileQueue:
    """Return a queue of file names: iterate it, or give its readers to a source."""
    return FileQueue(glob_patterns, name=name)
