"""Give the queues between producers and the step, and the hooks that fill them."""

from typing import Any

import torch

from monolith.native_training import queues

AsyncFunctionMgr = queues.AsyncFunctionManager
AsyncPushHook = queues.AsyncPushHook
EnqueueHook = queues.EnqueueHook
MultiQueueRunner = queues.QueueRunner
_FIFOQueue, _MultiFIFOQueue = queues.PrefetchQueue, queues.DevicePrefetchQueue
enqueue_dicts_with_queue_return = queues.prefetch


class _GPUCompatiblePaddingFIFOQueue(queues.TensorQueue):
    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
        *,
        device: torch.device | str | None = None,
    ) -> None:
        if shared_name is not None:
            raise ValueError(f"[{name}] expected no shared_name, got {shared_name!r}; share it")
        spec = queues.ElementSpec(dtypes, shapes)
        super().__init__(capacity, spec, names=names, name=name, device=device)
