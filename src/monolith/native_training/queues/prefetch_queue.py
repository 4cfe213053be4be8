"""Queue tensors that producers make ahead of the step that uses them."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from monolith.errors import FailedPreconditionError
from monolith.native_training.queues.bounded_queue import get_together, put_together
from monolith.native_training.queues.tensor_queue import TensorElement, TensorQueue
from monolith.util.waiting import DEFAULT_TIMEOUT_SECONDS


class PrefetchQueue:
    """Fill a queue from producers; without `device` nothing is copied; autograd records nothing.

    An element that was made but could not be put, because the queue was closed or stayed full or
    Ctrl-C came, is kept, and the next call of `enqueue_op` puts it before it asks the producers
    again. All methods
    are safe from any thread if the producers are.

    Args:
        dense_list: tensors, which every element refers to, or callables without arguments that
            give one, each called once per element.
        capacity: number of elements that the queue holds.
        queue_name: for messages.
        device: device on which all tensors come out, as in `TensorQueue`.
        timeout_seconds: limit on waits; see `BoundedQueue`.

    Raises:
        FailedPreconditionError: in code that is being compiled.
        ValueError: `dense_list` is None, or see `TensorQueue`.
        TypeError: `dense_list` is no list.

    Example:
        >>> numbers = iter(range(3))
        >>> queue = PrefetchQueue([lambda: torch.tensor(next(numbers)), torch.ones(1)])
        >>> queue.enqueue_op()
        >>> queue.dequeue()
        [tensor(0), tensor([1.])]
    """

    def __init__(
        self,
        dense_list: list[Any],
        capacity: int = 2,
        queue_name: str = "prefetch_queue",
        *,
        device: torch.device | str | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        if torch.compiler.is_compiling():  # torch.compile then leaves the whole caller as it is
            raise FailedPreconditionError(
                f"[PrefetchQueue] expected a call outside of compiled code (queue {queue_name!r})"
            )
        if dense_list is None:
            raise ValueError("[PrefetchQueue] expected dense_list, got None; an empty list is one")
        if not isinstance(dense_list, list):
            raise TypeError(
                f"[PrefetchQueue] expected dense_list as a list, got {type(dense_list).__name__}"
            )
        self._producers = list(dense_list)
        self._first = TensorQueue(
            capacity, name=queue_name, device=device, timeout_seconds=timeout_seconds
        )
        self._queues = [self._first]
        self._unsent: deque[list[TensorElement]] = deque()
        self._places: list[list[int]] | None = None  # of each queue, in the original order
        self._lock = threading.Lock()
        if all(isinstance(value, torch.Tensor) for value in dense_list):
            self._arrange(dense_list)

    def enqueue_op(self, timeout_seconds: float | None = None) -> None:
        """Call the producers once and put what they make; waits while the queue is full.

        Raises:
            CancelledError: the queue is closed.
            QueueFullError: there was no room within the limit.
            Exception: what a producer raises, or what `TensorQueue.element` does.
        """
        try:
            parts = self._unsent.popleft()
        except IndexError:
            parts = self._make()
        try:
            put_together(self._queues, parts, timeout_seconds)
        except BaseException:  # Ctrl-C too
            if not self._first.holds(parts[0]):
                self._unsent.appendleft(parts)
            raise

    def dequeue(self, timeout_seconds: float | None = None) -> list[torch.Tensor]:
        """Take the tensors of one element, in the order of the producers.

        Raises:
            OpError: see `BoundedQueue.get`.
        """
        return self.take(timeout_seconds)[0]

    def take(self, timeout_seconds: float | None = None) -> tuple[list[torch.Tensor], Any]:
        """Take the tensors of one element and their companion.

        Raises:
            OpError: see `BoundedQueue.get`.
        """
        # The list itself: the first element may add a queue to it while this waits.
        return self._merge(get_together(self._queues, timeout_seconds))

    def unsent(self) -> list[list[torch.Tensor]]:
        """Elements that were made and could not be put yet."""
        return [self._merge(parts)[0] for parts in list(self._unsent)]

    def drop_unsent(self) -> None:
        """Forget the elements that were made and could not be put."""
        self._unsent.clear()

    @property
    def queue(self) -> TensorQueue:
        """The only queue.

        Raises:
            NotImplementedError: there are several.
        """
        if len(self._queues) > 1:
            raise NotImplementedError(
                f"[PrefetchQueue.queue] expected one queue, got {len(self._queues)}; use `queues`"
            )
        return self._first

    @property
    def queues(self) -> list[TensorQueue]:
        """All queues, first that of tensors on the CPU."""
        return list(self._queues)

    @property
    def name(self) -> str:
        """Name of the first queue."""
        return self._first.name

    def size(self) -> int:
        """Number of elements at this moment."""
        return self._first.size()

    def _produce(self) -> tuple[Sequence[torch.Tensor], Any]:
        """Tensors of one element, and a companion that travels with them."""
        element = [p if isinstance(p, torch.Tensor) else p() for p in self._producers]
        return element, None

    def _make(self) -> list[TensorElement]:
        tensors, companion = self._produce()
        with self._lock:
            if self._places is None:
                self._arrange(tensors)
        if len(self._queues) == 1:
            return [self._first.element(tensors, companion)]
        assert self._places is not None
        if len(tensors) != sum(map(len, self._places)):
            raise ValueError(
                f"[PrefetchQueue.enqueue_op] expected {sum(map(len, self._places))} tensors, "
                f"got {len(tensors)} (queue {self.name!r})"
            )
        return [
            queue.element([tensors[place] for place in places], companion)
            for queue, places in zip(self._queues, self._places, strict=True)
        ]

    def _merge(self, parts: Sequence[TensorElement]) -> tuple[list[torch.Tensor], Any]:
        if len(parts) == 1:
            return list(parts[0].use()), parts[0].companion
        assert self._places is not None
        by_place = {
            place: tensor
            for places, part in zip(self._places, parts, strict=True)
            for place, tensor in zip(places, part.use(), strict=True)
        }
        return [by_place[place] for place in range(len(by_place))], parts[0].companion

    def _arrange(self, tensors: Sequence[torch.Tensor]) -> None:
        """Decide, by the first element, which tensor goes to which queue."""
        self._places = [list(range(len(tensors)))]


class DevicePrefetchQueue(PrefetchQueue):
    """Fill one queue with tensors on the CPU and, if there are any, one with tensors elsewhere.

    Both parts of an element are put together and taken together, also by several threads. The
    devices of the first element decide: those of `dense_list`, or what its callables give first.
    With `device`, there is one queue, that of the device.
    """

    def _arrange(self, tensors: Sequence[torch.Tensor]) -> None:
        on_cpu = [place for place, tensor in enumerate(tensors) if tensor.device.type == "cpu"]
        others = [place for place, tensor in enumerate(tensors) if tensor.device.type != "cpu"]
        if self._first.device is not None or not others:
            super()._arrange(tensors)
            return
        first, kind = self._first, tensors[others[0]].device.type
        second = TensorQueue(
            first.capacity,
            name=f"{first.name}_{kind}",
            timeout_seconds=first.timeout_seconds,
            lock_owner=first,
        )
        self._queues.append(second)
        self._places = [on_cpu, others]
