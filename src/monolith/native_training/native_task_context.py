"""Import path of the reference system; see `monolith.native_training.tasks.task_context`."""

from monolith.native_training.tasks.task_context import NativeTaskContext, get, with_ctx

__all__ = ["NativeTaskContext", "get", "with_ctx"]
