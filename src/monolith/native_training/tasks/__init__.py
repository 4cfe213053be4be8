"""Hold tasks with model functions, and `local_train` (docs/reference/native_task.md)."""

from monolith.native_training.tasks.context import Context, FeatureFactory
from monolith.native_training.tasks.local import local_train

__all__ = [
    "Context",
    "FeatureFactory",
    "local_train",
]
