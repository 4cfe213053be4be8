"""Import path of the reference system; see `monolith.train.task_context`."""

from monolith.train.task_context import NativeTaskContext, get, with_ctx

__all__ = ["NativeTaskContext", "get", "with_ctx"]
