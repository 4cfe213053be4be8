"""Queue nested structures of tensors between their maker and their user."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch

from monolith.native_training.ops.nested_tensors import NestedTensors, snapshot
from monolith.native_training.queues.prefetch_queue import DevicePrefetchQueue
from monolith.util.waiting import DEFAULT_TIMEOUT_SECONDS


class _Pending(Enum):
    PENDING = "PENDING"

    def __repr__(self) -> str:
        return self.value


PENDING = _Pending.PENDING
"""Stands where a tensor will be."""


class Prefetched:
    """A nested structure whose tensors come out of a queue.

    Args:
        queue: filled with tensors and the structure that they belong to.
        static: see `static`.
    """

    def __init__(self, queue: DevicePrefetchQueue, static: Any) -> None:
        self._queue, self._static = queue, static

    @property
    def static(self) -> Any:
        """The structure with `PENDING` for each tensor; `PENDING` alone if a callable makes it."""
        return self._static

    def __call__(self, timeout_seconds: float | None = None) -> Any:
        """Take one element and return the full structure.

        Raises:
            OpError: see `BoundedQueue.get`.
        """
        return self._queue.take(timeout_seconds)[1]


def prefetch(
    tensors: Any,
    capacity: int = 1,
    queue_name: str = "prefetch_queue",
    *,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> tuple[Any, DevicePrefetchQueue | None]:
    """Put a queue between what makes nested structures and what uses them.

    Args:
        tensors: a structure that `NestedTensors` takes, to which every element refers; or a
            callable without arguments that makes one, called once per element when it is put.
        capacity: number of elements that the queue holds; 0 for no queue.
        queue_name: for messages.
        timeout_seconds: limit on waits; see `BoundedQueue`.

    Returns:
        A `Prefetched`, which gives one element per call, and the queue, which an `EnqueueHook`
        fills; with capacity 0, `tensors` itself and None.

    Raises:
        ValueError: a leaf that `NestedTensors` does not take, or a negative capacity.

    Example:
        >>> batches = iter([{"x": torch.ones(1), "name": "a"}])
        >>> batch, queue = prefetch(lambda: next(batches), capacity=2)
        >>> queue.enqueue_op()
        >>> batch()
        {'x': tensor([1.]), 'name': 'a'}
    """
    if capacity == 0:
        return tensors, None
    static = PENDING if callable(tensors) else NestedTensors(tensors).get_static(PENDING)
    queue = _NestedQueue(tensors, capacity, queue_name, timeout_seconds=timeout_seconds)
    return Prefetched(queue, static), queue


class _NestedQueue(DevicePrefetchQueue):
    """A snapshot of a whole structure travels with its tensors."""

    def __init__(self, source: Any, *args: Any, **options: Any) -> None:
        self._source = source
        super().__init__([source] if callable(source) else snapshot(source)[0], *args, **options)

    def _produce(self) -> tuple[Sequence[torch.Tensor], Any]:
        return snapshot(self._source() if callable(self._source) else self._source)
