"""Hold queues of tensors between the threads of a run, and the hooks that fill them."""

from monolith.native_training.queues.async_functions import AsyncFunctionManager, AsyncPushHook
from monolith.native_training.queues.bounded_queue import BoundedQueue
from monolith.native_training.queues.prefetch_queue import DevicePrefetchQueue, PrefetchQueue
from monolith.native_training.queues.prefetched import PENDING, Prefetched, prefetch
from monolith.native_training.queues.queue_runner import EnqueueHook, QueueRunner
from monolith.native_training.queues.tensor_queue import ElementSpec, TensorQueue

__all__ = [
    "AsyncFunctionManager",
    "AsyncPushHook",
    "BoundedQueue",
    "DevicePrefetchQueue",
    "ElementSpec",
    "EnqueueHook",
    "PENDING",
    "PrefetchQueue",
    "Prefetched",
    "QueueRunner",
    "TensorQueue",
    "prefetch",
]
