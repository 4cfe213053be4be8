"""Read batches ahead of the steps of a run, and measure whether that pays."""

import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from monolith.errors import DeadlineExceededError
from monolith.train.driver import Coordinator, Hook, StepContext, StepResults
from monolith.util.waiting import DEFAULT_TIMEOUT_SECONDS, wait_until

T = TypeVar("T")


class StepReader(Generic[T]):
    """Makes what each step needs: when the step takes it, or on a thread, up to `capacity` ahead.

        capacity 0    take() makes it; no thread
        capacity 2    while step s runs, the thread makes what steps s + 1 and s + 2 need

    What step t needs is not begun before step t - capacity - 1 has finished. One thread takes.

    Args:
        make: makes what the next step needs; `StopIteration` says that there is no more.
        capacity: steps ahead.
        timeout_seconds: limit on the wait for the thread.
    """

    def __init__(
        self,
        make: Callable[[], T],
        capacity: int,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._make, self._timeout_seconds = make, timeout_seconds
        self._capacity = capacity
        # Re-entrant, so that a signal handler may call `stop` whatever its thread does.
        self._changed = threading.Condition(threading.RLock())
        self._items: deque[T] = deque()
        self._num_made = self._num_finished = 0
        self._error: BaseException | None = None  # of the thread; StopIteration at the end
        self._is_stopped = False
        self._is_thread_on = False
        self._coordinator: Coordinator | None = None

    @property
    def capacity(self) -> int:
        """Steps ahead, as it is now."""
        return self._capacity

    @property
    def num_ready(self) -> int:
        """Steps whose needs are made and not taken, at this moment."""
        return len(self._items)

    def start(self, coordinator: Coordinator) -> None:
        """Begin to read ahead; the coordinator joins the thread."""
        self._coordinator = coordinator
        coordinator.add_cleanup(self.stop)
        self.set_capacity(self._capacity)

    def set_capacity(self, capacity: int) -> None:
        """Read so many steps ahead from now on; what is made is used first."""
        assert self._coordinator is not None
        with self._changed:
            self._capacity = capacity
            self._changed.notify_all()
            is_started = capacity > 0 and not self._is_thread_on
            self._is_thread_on = self._is_thread_on or is_started
        if is_started:
            self._coordinator.start(self._read_ahead, name="read ahead")

    def take(self) -> T:
        """What the next step needs.

        Raises:
            StopIteration: there is no more, or the reader was stopped.
            BaseException: what `make` raised, also on the thread.
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
                self._timeout_seconds,
                lambda: "the next batch; Ctrl-C ends the run",
            ):
                raise DeadlineExceededError(
                    f"[StepReader.take] expected a batch within {self._timeout_seconds} s, got "
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

    def finish(self) -> None:
        """The step that took last has finished: its updates are applied, or handed on."""
        with self._changed:
            self._num_finished += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Make no more, and wake who waits. Safe in a signal handler, and twice."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def drain(self) -> list[T]:
        """Take what is made and was not used."""
        with self._changed:
            left = list(self._items)
            self._items.clear()
        return left

    def _may_make(self) -> bool:
        return self._num_made - self._num_finished <= self._capacity

    def _read_ahead(self) -> None:
        try:
            while self._is_next_wanted():
                item = self._make()
                with self._changed:
                    self._items.append(item)
                    self._changed.notify_all()
        except BaseException as error:  # the next `take` raises it
            with self._changed:
                self._error = error
        finally:
            with self._changed:
                self._is_thread_on = False
                self._changed.notify_all()

    def _is_next_wanted(self) -> bool:
        """Wait until the thread may go on, as long as the run does; False ends the thread."""
        with self._changed:
            while not self._is_stopped and self._capacity > 0 and not self._may_make():
                self._changed.wait()
            if self._is_stopped or self._capacity == 0:
                self._is_thread_on = False
                return False
            self._num_made += 1
            return True


_log = logging.getLogger(__name__)

_SKIPPED, _MEASURED = 3, 12  # steps of each way
_MIN_GAIN = 0.03  # of the time of a step; less is noise


class AutoPrefetch(Hook):
    """Measures some steps without and some with prefetch of one step, and keeps what is faster.

    Args:
        reader: begins without prefetch.
        seconds: gives the time.
    """

    def __init__(
        self, reader: StepReader[Any], seconds: Callable[[], float] = time.perf_counter
    ) -> None:
        self._reader, self._seconds = reader, seconds
        self._last: float | None = None
        self._gaps: list[float] = []

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Note how long the step took, and change sides when it is time."""
        each = _SKIPPED + _MEASURED
        if len(self._gaps) == 2 * each:
            return
        now = self._seconds()
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now
        if len(self._gaps) == each and self._reader.capacity == 0:
            self._reader.set_capacity(1)
        elif len(self._gaps) == 2 * each:
            self._choose(self._gaps[_SKIPPED:each], self._gaps[each + _SKIPPED :])

    def _choose(self, without: list[float], ahead: list[float]) -> None:
        plain, prefetched = statistics.median(without), statistics.median(ahead)
        chosen = 1 if prefetched < (1 - _MIN_GAIN) * plain else 0
        self._reader.set_capacity(chosen)
        _log.info(
            "prefetch auto: %d, for a step takes %.3f ms without and %.3f ms with it",
            chosen,
            plain * 1e3,
            prefetched * 1e3,
        )
