"""Read batches ahead of the steps of a run, and measure whether that pays."""

import logging
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from monolith.data.cursor import WaitEndedError
from monolith.errors import DeadlineExceededError
from monolith.train.driver import Coordinator, Hook, StepContext, StepResults
from monolith.util.waiting import DEFAULT_TIMEOUT_SECONDS, wait_until

T = TypeVar("T")


class StepReader(Generic[T]):
    """A reader of one item per step: in `take`, or on a thread, at most `capacity` steps ahead.

        capacity 0    take() makes the item; no thread
        capacity 2    while step s runs, the thread makes the items of steps s + 1 and s + 2

    The item of step t is not begun before step t - capacity - 1 has finished. One thread may call
    `take`.

    Args:
        make: Function that makes the item of the next step, or raises `StopIteration` at the end.
        capacity: Number of steps to read ahead.
        is_endless: Whether the source is a stream, for which `take` waits without a limit.
        timeout_seconds: Limit on the wait of `take` for the thread.

    Attributes:
        timeout_seconds: The limit.
        on_wait: Function that `take` calls again and again while it waits; None for none.
    """

    def __init__(
        self,
        make: Callable[[], T],
        capacity: int,
        *,
        is_endless: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._make = make
        self.timeout_seconds = math.inf if is_endless else timeout_seconds
        self._capacity = capacity
        self.on_wait: Callable[[], None] | None = None
        # Re-entrant, so that a signal handler may call `stop` while its thread holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._items: deque[T] = deque()
        self._num_made = self._num_finished = 0
        self._error: BaseException | None = None  # of the thread, StopIteration included
        self._is_stopped = False
        self._is_thread_on = self._is_making = False
        self._coordinator: Coordinator | None = None

    @property
    def capacity(self) -> int:
        """Number of steps to read ahead, at the moment."""
        return self._capacity

    @property
    def num_ready(self) -> int:
        """Number of items that are made and not taken, at the moment."""
        return len(self._items)

    def start(self, coordinator: Coordinator) -> None:
        """Start to read ahead, on a thread that the coordinator joins."""
        self._coordinator = coordinator
        coordinator.add_cleanup(self.stop)
        self.set_capacity(self._capacity)

    def set_capacity(self, capacity: int) -> None:
        """Read `capacity` steps ahead from now on; items that are made already are taken first."""
        assert self._coordinator is not None
        with self._changed:
            self._capacity = capacity
            self._changed.notify_all()
            is_started = capacity > 0 and not self._is_thread_on
            self._is_thread_on = self._is_thread_on or is_started
        if is_started:
            self._coordinator.start(self._read_ahead, name="read ahead")

    def take(self) -> T:
        """Return the item of the next step.

        Raises:
            DeadlineExceededError: The thread made no item within `timeout_seconds`.
            StopIteration: There are no more items, or the reader was stopped.
            BaseException: The error of `make`, also on the thread.
        """
        with self._changed:
            is_ready = bool(self._items) or self._is_stopped or not self._is_thread_on
            if not is_ready and not wait_until(
                self._changed,
                lambda: (
                    bool(self._items)
                    or self._error is not None
                    or self._is_stopped
                    or not self._is_thread_on
                ),
                self.timeout_seconds,
                lambda: "the next batch; Ctrl-C ends the run",
                idle=self.on_wait,
            ):
                raise DeadlineExceededError(
                    f"[StepReader.take] expected a batch within {self.timeout_seconds} s, got "
                    "none; the source is stuck"
                )
            if self._is_stopped:
                raise StopIteration
            if self._items:
                return self._items.popleft()
            if self._error is not None:
                raise self._error
            self._num_made += 1
        return self._make()

    def while_waiting(self) -> None:
        """Call `on_wait`, for a source that waits for a stream.

        Raises:
            WaitEndedError: The reader was stopped, or the run is to end.
        """
        is_over = self._coordinator is not None and self._coordinator.stop_requested
        if self._is_stopped or is_over:
            raise WaitEndedError
        if self.on_wait is not None:
            self.on_wait()

    def finish(self) -> None:
        """Note that the step of the last item has finished, with its update applied or started."""
        with self._changed:
            self._num_finished += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Make no more items, and wake all waits. Safe in a signal handler; may be called again."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def restart(self) -> None:
        """Forget the error of the thread and a stop, so that `start` begins again.

        The thread has ended. Items that were not taken are drained before.
        """
        with self._changed:
            self._num_made = self._num_finished = 0
            self._error, self._is_stopped = None, False

    def drain(self) -> list[T]:
        """Remove and return the items that were not taken."""
        with self._changed:
            items = list(self._items)
            self._items.clear()
        return items

    def settle(self) -> None:
        """Wait until the thread has made all items that it may make before the next `finish`.

        Raises:
            DeadlineExceededError: The thread made no item within the limit.
        """
        with self._changed:
            if not wait_until(
                self._changed,
                lambda: (
                    not self._is_thread_on
                    or self._is_stopped
                    or not (self._is_making or self._may_make())
                ),
                self.timeout_seconds,
                lambda: "the batches that are read ahead; Ctrl-C ends the run",
            ):
                raise DeadlineExceededError(
                    f"[StepReader.settle] expected the batches that are read ahead within "
                    f"{self.timeout_seconds} s, got none; the source is stuck"
                )

    def _may_make(self) -> bool:
        return self._num_made - self._num_finished <= self._capacity

    def _read_ahead(self) -> None:
        try:
            while self._is_next_wanted():
                item = self._make()
                with self._changed:
                    self._items.append(item)
                    self._is_making = False
                    self._changed.notify_all()
        except BaseException as error:  # the next `take` raises it
            with self._changed:
                self._error, self._is_making = error, False
                self._is_thread_on = False  # else `_is_next_wanted` has said so
                self._changed.notify_all()

    def _is_next_wanted(self) -> bool:
        """Wait until the thread may make the next item; return False to end the thread."""
        with self._changed:
            while not self._is_stopped and self._capacity > 0 and not self._may_make():
                self._changed.wait()
            if self._is_stopped or self._capacity == 0:
                self._is_thread_on = False
                self._changed.notify_all()
                return False
            self._num_made += 1
            self._is_making = True
            return True


_log = logging.getLogger(__name__)

_SKIPPED, _MEASURED = 3, 12  # steps without prefetch, and again with prefetch
_MIN_GAIN = 0.03  # share of the time of a step; a smaller gain is noise


class AutoPrefetch(Hook):
    """The hook that times steps without and with prefetch of one step, and keeps the faster way.

    Args:
        reader: Reader of the run, with capacity 0 at first.
        seconds: Clock that returns seconds.
    """

    def __init__(
        self, reader: StepReader[Any], seconds: Callable[[], float] = time.perf_counter
    ) -> None:
        self._reader, self._seconds = reader, seconds
        self._last: float | None = None
        self._gaps: list[float] = []

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Time the step; after 15 steps turn prefetch on, and choose after 30."""
        half = _SKIPPED + _MEASURED
        if len(self._gaps) == 2 * half:
            return
        now = self._seconds()
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now
        if len(self._gaps) == half and self._reader.capacity == 0:
            self._reader.set_capacity(1)
        elif len(self._gaps) == 2 * half:
            self._choose(self._gaps[_SKIPPED:half], self._gaps[half + _SKIPPED :])

    def _choose(self, gaps_without: list[float], gaps_with: list[float]) -> None:
        plain, ahead = statistics.median(gaps_without), statistics.median(gaps_with)
        capacity = 1 if ahead < (1 - _MIN_GAIN) * plain else 0
        self._reader.set_capacity(capacity)
        _log.info(
            "prefetch auto: %d, for a step takes %.3f ms without and %.3f ms with it",
            capacity,
            plain * 1e3,
            ahead * 1e3,
        )
