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
        tensors, structure = self._queue.take(timeout_seconds)
        if isinstance(structure, NestedTensors):
            return structure.get_nested_result(tensors)
        return structure


def prefetch(
    tensors: Any,
    capacity: int = 1,
    queue_name: str = "prefetch_queue",
    *,
    device: torch.device | str | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> tuple[Any, DevicePrefetchQueue | None]:
    """Put a queue between what makes nested structures and what uses them.

    Args:
        tensors: a structure that `NestedTensors` takes, to which every element refers; or a
            callable without arguments that makes one, called once per element when it is put.
        capacity: number of elements that the queue holds; 0 for no queue.
        queue_name: for messages.
        device: device on which all tensors come out, as in `TensorQueue`; None leaves them where
            they are.
        timeout_seconds: limit on waits; see `BoundedQueue`.

    Returns:
        A `Prefetched`, which gives one element per call, and the queue, which an `EnqueueHook`
        fills; with capacity 0, `tensors` itself and None.

    Raises:
        ValueError: a leaf that `NestedTensors` does not take, a negative capacity, or a device that
            is not there.

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
    queue = _NestedQueue(
        tensors, capacity, queue_name, device=device, timeout_seconds=timeout_seconds
    )
    return Prefetched(queue, static), queue


class _NestedQueue(DevicePrefetchQueue):
    """Send a structure with its tensors: a copy of it, or, with a device, what fills it again."""

    def __init__(self, source: Any, *args: Any, **options: Any) -> None:
        self._source = source
        super().__init__([source] if callable(source) else snapshot(source)[0], *args, **options)

    def _produce(self) -> tuple[Sequence[torch.Tensor], Any]:
        source = self._source() if callable(self._source) else self._source
        if self.queues[0].device is None:
            return snapshot(source)
        nested = NestedTensors(source)
        return nested.get_tensors(), nested
