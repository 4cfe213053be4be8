"""Let the chief of a job hold all workers at their next steps: `BarrierOp` and `BarrierHook`."""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from monolith.cluster.job.shared_state import SharedState
from monolith.control import BarrierAlreadyPlacedError as BarrierAlreadyPlacedError
from monolith.control.controlled import ALREADY_PLACED
from monolith.errors import DeadlineExceededError
from monolith.native_training.util.run_state import shared_state_of
from monolith.train.driver import Hook, Run, StepContext, StepResults
from monolith.util.waiting import check_timeout

BarrierCallback = Callable[[str, Run | None], object]
"""(action, run) -> anything: what a worker, or who places the barrier, does at it."""

_log = logging.getLogger(__name__)

_PLACED = 0  # the flag of the barrier; that of worker i is flag i
_LOG_SECONDS = 60.0


class BarrierOp:
    """A barrier that all processes of a job see: a flag for itself, and one for each other worker.

    Thread-safe in a process.

    Args:
        capacity: Number of workers, the chief included.
        is_chief: Whether this process places and removes the barrier; a label only, as the barrier
            stays where it is when the chief is started again.
        wait_seconds: Seconds between two looks at the flag.
        name_prefix: Name; barriers of different names are different ones.
        barrier_callbacks: Called with the action and the run where the barrier is placed, and in
            each worker that reaches it.
        shared: Holds the flags; None takes those of the current run, or new ones.
        timeout_seconds: Limit on the wait of a worker.

    Raises:
        ValueError: `capacity` is below 1, or a time is negative or not a number.
    """

    def __init__(
        self,
        capacity: int,
        is_chief: bool = True,
        wait_seconds: float = 1,
        name_prefix: str = "default",
        barrier_callbacks: Sequence[BarrierCallback] | None = None,
        *,
        shared: SharedState | None = None,
        timeout_seconds: float = math.inf,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"[BarrierOp] expected capacity >= 1, got {capacity}")
        self.capacity, self.is_chief = capacity, is_chief
        self._wait_seconds = check_timeout("[BarrierOp]", wait_seconds)
        self._timeout_seconds = check_timeout("[BarrierOp]", timeout_seconds)
        self._flags_name, self._action_name = f"barrier {name_prefix}", f"action {name_prefix}"
        self._callbacks = list(barrier_callbacks or ())
        self._shared = shared_state_of() if shared is None else shared
        self._lock = threading.Lock()

    def place_barrier(self, session: Run | None = None, action: str = "") -> None:
        """Let workers wait after their next step.

        Args:
            session: Run of the caller.
            action: What they do at the barrier, for the callbacks.

        Raises:
            BarrierAlreadyPlacedError: The barrier is placed already.
        """
        with self._lock:
            if self._flags()[_PLACED]:
                raise BarrierAlreadyPlacedError(ALREADY_PLACED)
            self._shared.set_text(self._action_name, action)
            self._set(_PLACED, True)
        self._call_back(action, session)

    def remove_barrier(self, session: Run | None = None) -> None:
        """Let workers go on."""
        with self._lock:
            self._set(_PLACED, False)

    def is_barrier_placed(self, session: Run | None = None) -> bool:
        """Return whether the barrier is placed."""
        return self._flags()[_PLACED]

    def is_barrier_removed(self, session: Run | None = None) -> bool:
        """Return whether the barrier is not placed."""
        return not self._flags()[_PLACED]

    def wait_until_barrier_removed(self, session: Run | None, index: int) -> None:
        """Wait in a worker until the barrier is removed.

        Raises:
            ValueError: `index` is that of the chief, or not below the capacity.
            DeadlineExceededError: The barrier stays longer than the limit.
        """
        if not 0 < index < self.capacity:
            raise ValueError(
                f"Index [{index}] must be non-negative and less than capacity [{self.capacity}]. "
            )
        self._set(index, True)
        try:
            self._call_back(self._shared.text(self._action_name), session)
            start = logged_at = time.monotonic()
            while self._flags()[_PLACED]:
                now = time.monotonic()
                if now - start >= self._timeout_seconds:
                    raise DeadlineExceededError(
                        f"[BarrierOp] expected the barrier to be removed within "
                        f"{self._timeout_seconds:g} s, got one that stays (worker {index})"
                    )
                if now - logged_at >= _LOG_SECONDS:
                    _log.info("worker %d is at the barrier since %.0f s", index, now - start)
                    logged_at = now
                time.sleep(self._wait_seconds)
        finally:
            self._set(index, False)

    def is_all_blocked(self, session: Run | None = None) -> bool:
        """Return whether the barrier is placed and all other workers wait at it."""
        return all(self._flags())

    def is_none_blocked(self, session: Run | None = None) -> bool:
        """Return whether the barrier is not placed and no worker waits."""
        return not any(self._flags())

    def get_blocked_indices(self, session: Run | None = None) -> list[int]:
        """Return the workers that wait; 0 stands for the barrier itself."""
        return [index for index, is_set in enumerate(self._flags()) if is_set]

    def get_unblocked_indices(self, session: Run | None = None) -> list[int]:
        """Return the workers that do not wait; 0 stands for the barrier itself."""
        return [index for index, is_set in enumerate(self._flags()) if not is_set]

    def _flags(self) -> list[bool]:
        return self._shared.flags(self._flags_name, self.capacity)

    def _set(self, index: int, value: bool) -> None:
        self._shared.set_flag(self._flags_name, self.capacity, index, value)

    def _call_back(self, action: str, session: Run | None) -> None:
        for callback in self._callbacks:
            callback(action, session)


class BarrierHook(Hook):
    """The hook with which a worker waits at a barrier after a step. The chief never waits.

    Args:
        index: Number of the worker.
        barrier_op: The barrier.
    """

    def __init__(self, index: int, barrier_op: BarrierOp) -> None:
        self._index, self._barrier = index, barrier_op

    def before_run(self, ctx: StepContext) -> Callable[[], bool]:
        """Look at the barrier during the step."""
        return lambda: self._barrier.is_barrier_placed(ctx.run)

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Wait if the barrier was placed."""
        if self._index > 0 and results.extra.get(self):
            self._barrier.wait_until_barrier_removed(ctx.run, self._index)
