"""Import path of the reference system; see `monolith.train`."""

from typing import Any

from monolith import train

AsyncFunctionMgr = train.AsyncFunctionManager
AsyncPushHook = train.AsyncPushHook
EnqueueHook = train.EnqueueHook
MultiQueueRunner = train.QueueRunner
_FIFOQueue, _MultiFIFOQueue = train.PrefetchQueue, train.DevicePrefetchQueue
enqueue_dicts_with_queue_return = train.prefetch


class _GPUCompatiblePaddingFIFOQueue(train.TensorQueue):
    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
    ) -> None:
        if shared_name is not None:
            raise ValueError(f"[{name}] expected no shared_name, got {shared_name!r}; share it")
        super().__init__(capacity, train.ElementSpec(dtypes, shapes), names=names, name=name)
