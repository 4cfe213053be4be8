"""Import path of the reference system; see `monolith.native_training.tasks.local`."""

from monolith.native_training.tasks.local import local_train

__all__ = ["local_train"]
