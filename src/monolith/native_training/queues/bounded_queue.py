"""Queue elements between threads, first in, first out; several queues may share a lock."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from monolith.errors import CancelledError, DeadlineExceededError, EndOfQueueError, QueueFullError
from monolith.util.waiting import DEFAULT_TIMEOUT_SECONDS, check_timeout, wait_until

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """Hands items from threads to threads in order, each once; it holds `capacity` of them.

        open       puts and gets wait for room and for items
        closed     puts are refused; gets hand out what is left, then raise `EndOfQueueError`
        cancelled  puts and gets are refused; `drain` gives what is left

    Closing and cancelling wake whoever waits. A call that raises has put or taken nothing. All
    methods are safe from any thread; Ctrl-C ends a wait of the main thread.

    Args:
        capacity: at least 1.
        name: for messages.
        timeout_seconds: limit on a wait of `put` and `get` that are given none; `math.inf` is
            allowed.
        lock_owner: a queue with which this one shares a lock, for `put_together`.

    Raises:
        ValueError: the capacity or the limit is out of range.

    Example:
        >>> queue = BoundedQueue(2)
        >>> queue.put("a")
        >>> queue.close()
        >>> queue.get()
        'a'
    """

    def __init__(
        self,
        capacity: int,
        *,
        name: str = "queue",
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        lock_owner: "BoundedQueue[Any] | None" = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(
                f"[BoundedQueue] expected a capacity of at least 1, got {capacity} (queue {name!r})"
            )
        self.capacity, self.name = capacity, name
        self.timeout_seconds = check_timeout("[BoundedQueue]", timeout_seconds)
        # One for room and for items: a notice that a giving-up thread swallows could stall others.
        self._changed: threading.Condition = (
            lock_owner._changed if lock_owner else threading.Condition()
        )
        self._items: deque[T] = deque()
        self._is_closed = False
        self._is_cancelled = False

    def put(self, item: T, timeout_seconds: float | None = None) -> None:
        """Append an item; waits while the queue is full.

        Raises:
            CancelledError: the queue is closed.
            QueueFullError: there was no room within the limit.
        """
        put_together((self,), (item,), timeout_seconds)

    def get(self, timeout_seconds: float | None = None) -> T:
        """Take the oldest item; waits while the queue is empty.

        Raises:
            EndOfQueueError: the queue is closed and empty; also a `CancelledError`.
            CancelledError: the queue is cancelled.
            DeadlineExceededError: there was no item within the limit.
        """
        item: T = get_together((self,), timeout_seconds)[0]
        return item

    def size(self) -> int:
        """Number of items at this moment."""
        return len(self._items)

    def holds(self, item: T) -> bool:
        """Whether this very item is in the queue at this moment."""
        with self._changed:
            return any(held is item for held in self._items)

    @property
    def is_closed(self) -> bool:
        """Whether puts are refused."""
        return self._is_closed

    def close(self) -> None:
        """Refuse further puts; what is left is still handed out."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def cancel(self) -> None:
        """Refuse further puts and gets."""
        with self._changed:
            self._is_closed = self._is_cancelled = True
            self._changed.notify_all()

    def reopen(self) -> None:
        """Accept puts and gets again; what is left stays."""
        with self._changed:
            self._is_closed = self._is_cancelled = False

    def drain(self) -> list[T]:
        """Take all items without waiting, whatever the state."""
        with self._changed:
            left = list(self._items)
            self._items.clear()
            self._changed.notify_all()
        return left

    def __repr__(self) -> str:
        state = "cancelled" if self._is_cancelled else "closed" if self._is_closed else "open"
        return f"queue {self.name!r}, {state}, {len(self._items)} of {self.capacity}"


def put_together(
    queues: Sequence[BoundedQueue[Any]],
    items: Sequence[Any],
    timeout_seconds: float | None = None,
) -> None:
    """Append an item to each of several queues that share a lock: to all of them, or to none.

    Raises:
        CancelledError: one of the queues is closed.
        QueueFullError: one of them had no room within the limit.
    """
    changed, limit = queues[0]._changed, _limit_of("put", queues, timeout_seconds)
    with changed:
        if not wait_until(
            changed,
            lambda: _is_any_closed(queues) or all(len(q._items) < q.capacity for q in queues),
            limit,
            lambda: f"room in {queues[0]}; take items or close it",
        ):
            raise QueueFullError(
                f"[BoundedQueue.put] expected room within {limit} s, got none ({queues[0]}); "
                "take items out, or give a longer timeout_seconds"
            )
        for queue in queues:
            if queue._is_closed:
                raise CancelledError(f"[BoundedQueue.put] expected an open queue, got {queue}")
        for queue, item in zip(queues, items, strict=True):
            queue._items.append(item)
        changed.notify_all()


def get_together(
    queues: Sequence[BoundedQueue[Any]], timeout_seconds: float | None = None
) -> list[Any]:
    """Take the oldest item of each of several queues that share a lock: of all, or of none.

    Raises:
        EndOfQueueError: one of the queues is closed and empty.
        CancelledError: one of them is cancelled.
        DeadlineExceededError: one of them had no item within the limit.
    """
    changed, limit = queues[0]._changed, _limit_of("get", queues, timeout_seconds)
    with changed:
        if not wait_until(
            changed,
            lambda: all(q._items for q in queues) or _is_any_closed(queues),
            limit,
            lambda: f"an item in {queues[0]}; put one or close it",
        ):
            raise DeadlineExceededError(
                f"[BoundedQueue.get] expected an item within {limit} s, got none ({queues[0]}); "
                "start what fills it, or give a longer timeout_seconds"
            )
        for queue in queues:
            if queue._is_cancelled:
                raise CancelledError(f"[BoundedQueue.get] expected an open queue, got {queue}")
        for queue in queues:
            if not queue._items:
                raise EndOfQueueError(f"[BoundedQueue.get] expected an item, got {queue}")
        items = [queue._items.popleft() for queue in queues]
        changed.notify_all()
    return items


def _is_any_closed(queues: Sequence[BoundedQueue[Any]]) -> bool:
    return any(queue._is_closed for queue in queues)


def _limit_of(
    verb: str, queues: Sequence[BoundedQueue[Any]], timeout_seconds: float | None
) -> float:
    if timeout_seconds is None:
        return queues[0].timeout_seconds
    return check_timeout(f"[BoundedQueue.{verb}]", timeout_seconds)
