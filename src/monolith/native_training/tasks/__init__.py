"""Tasks of the reference system."""

from monolith.native_training.tasks.context import Context, FeatureFactory
from monolith.native_training.tasks.local import local_train

__all__ = [
    "Context",
    "FeatureFactory",
    "local_train",
]
