"""Import path of the reference system; see `monolith.train.local`."""

from monolith.train.local import local_train

__all__ = ["local_train"]
