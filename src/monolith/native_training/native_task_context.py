"""Give `NativeTaskContext`: which process of a job runs."""

from monolith.native_training.tasks.task_context import NativeTaskContext, get, with_ctx

__all__ = ["NativeTaskContext", "get", "with_ctx"]
