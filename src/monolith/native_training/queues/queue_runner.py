"""Fill queues on threads while a run goes on."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from monolith.errors import CancelledError, OutOfRangeError, QueueFullError
from monolith.native_training.queues.bounded_queue import BoundedQueue
from monolith.train.driver import Coordinator, Hook, Run


class QueueRunner:
    """Calls enqueue functions again and again, each on a thread of its own.

    A thread ends when its input does (`OutOfRangeError`, `StopIteration`); the last one to do so
    closes the queues. Any other error ends the run with that error, and cancels the queues.

    Args:
        queues: what is filled; closed and cancelled together.
        enqueue_ops: without arguments; one that raises `QueueFullError` is called again.

    Raises:
        ValueError: there is no queue or no function.
    """

    def __init__(
        self, queues: Sequence[BoundedQueue[Any]], enqueue_ops: Sequence[Callable[[], object]]
    ) -> None:
        if not queues or not enqueue_ops:
            raise ValueError(
                "[QueueRunner] expected at least one queue and one function that fills it, got "
                f"{len(queues)} and {len(enqueue_ops)}"
            )
        self.queues, self.enqueue_ops = list(queues), list(enqueue_ops)
        self._lock = threading.Lock()
        self._num_filling = 0
        self._threads: list[threading.Thread] = []

    @property
    def name(self) -> str:
        """Name of the first queue."""
        return self.queues[0].name

    @property
    def queue(self) -> BoundedQueue[Any]:
        """The only queue.

        Raises:
            NotImplementedError: there are several.
        """
        if len(self.queues) > 1:
            raise NotImplementedError(
                f"[QueueRunner.queue] expected one queue, got {len(self.queues)}; use `queues`"
            )
        return self.queues[0]

    def close(self) -> None:
        """Close every queue: what is left is still handed out."""
        for queue in self.queues:
            queue.close()

    def cancel(self) -> None:
        """Cancel every queue: whoever waits for one is told."""
        for queue in self.queues:
            queue.cancel()

    def start(self, coordinator: Coordinator) -> list[threading.Thread]:
        """Start the threads, unless those of an earlier call go on; open the queues again for it.

        A stop of the run closes the queues, so that nobody waits for what is not made any more;
        they are cancelled when the run has ended, well or not.
        """
        if not any(thread.is_alive() for thread in self._threads):
            for queue in self.queues:
                queue.reopen()
            coordinator.add_cleanup(self.cancel)
            coordinator.start(lambda: self._close_at_stop(coordinator), name=f"close {self.name}")
            self._num_filling = len(self.enqueue_ops)
            self._threads = [
                coordinator.start(
                    lambda op=op: self._fill(op, coordinator),  # type: ignore[misc]
                    name=f"fill {self.name} {number}",
                )
                for number, op in enumerate(self.enqueue_ops)
            ]
        return list(self._threads)

    def _close_at_stop(self, coordinator: Coordinator) -> None:
        while not coordinator.wait_for_stop(math.inf):
            pass
        self.close()

    def _fill(self, enqueue_op: Callable[[], object], coordinator: Coordinator) -> None:
        try:
            while not coordinator.stop_requested:
                try:
                    enqueue_op()
                except QueueFullError:
                    continue  # whoever takes items is slow; the element is kept
        except (OutOfRangeError, StopIteration):
            with self._lock:
                self._num_filling -= 1
                is_last = self._num_filling == 0
            if is_last:
                self.close()
        except BaseException as error:
            is_closed = coordinator.stop_requested or any(q.is_closed for q in self.queues)
            if isinstance(error, CancelledError) and is_closed:
                return
            coordinator.request_stop(error)  # first, so that whoever is woken finds the reason
            self.cancel()


class _Filled(Protocol):
    """Require of a queue what `EnqueueHook` calls."""

    @property
    def queues(self) -> Sequence[BoundedQueue[Any]]: ...

    def enqueue_op(self) -> object: ...


class EnqueueHook(Hook):
    """Fills a `PrefetchQueue` on a thread while a run goes on.

    Args:
        q: has `queues` and `enqueue_op`.
    """

    def __init__(self, q: _Filled) -> None:
        self.runner = QueueRunner(q.queues, [q.enqueue_op])

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Start the thread."""
        self.runner.start(coordinator)
