"""Give `local_train`, which trains a task with servers in the process."""

from monolith.native_training.tasks.local import local_train

__all__ = ["local_train"]
