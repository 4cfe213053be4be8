"""Let the chief and the workers of a job wait for each other at the start and at the end.

Workers wait until the chief has restored the job, and the chief ends when no worker is left.
"""

import logging
from collections.abc import Callable

from monolith.cluster.job.shared_state import SharedState
from monolith.errors import DeadlineExceededError
from monolith.native_training.saver.tide import TimeSource
from monolith.native_training.util.run_state import shared_state_of
from monolith.train.controlled.park_hook import at_boundary
from monolith.train.driver import Coordinator, Hook, Run
from monolith.util.waiting import check_timeout

_log = logging.getLogger(__name__)

_FLAGS = "sync_hooks"
_RESTORED = 0  # the flag of the chief; that of worker i is flag i
_POLL_SECONDS = 1.0
_LOG_SECONDS = 60.0
_RESTORE_SECONDS = 7200.0
_SYSTEM_TIME = TimeSource()


class SyncHelper:
    """Holds a flag "restored" and a flag "alive" for each worker, which all processes see.

    Args:
        num_workers: Number of workers, the chief included.
        is_chief: Whether this process is the chief. Its helper takes the flag "restored" back, so
            that workers wait for a chief that was started again.
        var_device: Label of the process that has the flags; a label only.
        shared: Holds the flags; None takes those of the current run, or new ones.
    """

    def __init__(
        self,
        num_workers: int,
        is_chief: bool,
        var_device: str = "/job:chief/task:0",
        *,
        shared: SharedState | None = None,
    ) -> None:
        self.num_workers, self.var_device = num_workers, var_device
        self._shared = shared_state_of() if shared is None else shared
        if is_chief:
            self._set(_RESTORED, False)

    def mark_restore_done(self) -> None:
        """Let the workers begin."""
        self._set(_RESTORED, True)

    def get_restore_status(self) -> bool:
        """Return whether the chief has restored the job."""
        return self._flags()[_RESTORED]

    def start_worker(self, worker_index: int) -> None:
        """Mark a worker other than the chief as alive."""
        self._check(worker_index)
        self._set(worker_index, True)

    def finish_worker(self, worker_index: int) -> None:
        """Mark a worker other than the chief as finished."""
        self._check(worker_index)
        self._set(worker_index, False)

    def get_alive_workers(self) -> list[int]:
        """Return the indices of the workers that are alive, the chief left out."""
        return [i for i, is_alive in enumerate(self._flags()) if is_alive and i != _RESTORED]

    def get_num_alive_workers(self) -> int:
        """Return the number of workers that are alive, the chief left out."""
        return len(self.get_alive_workers())

    def _check(self, index: int) -> None:
        if not 0 < index < self.num_workers:
            raise AssertionError(f"Index {index} is out range ")

    def _set(self, index: int, value: bool) -> None:
        self._shared.set_flag(_FLAGS, self.num_workers, index, value)

    def _flags(self) -> list[bool]:
        return self._shared.flags(_FLAGS, self.num_workers)


class _Waiting:
    """Polls until something is so, and logs the wait."""

    def __init__(self, source: TimeSource, poll_seconds: float, log_seconds: float) -> None:
        self._source, self._poll_seconds, self._log_seconds = source, poll_seconds, log_seconds

    def until(
        self,
        is_ready: Callable[[], bool],
        timeout_seconds: float,
        what: Callable[[], str],
        idle: Callable[[], None] = lambda: None,
    ) -> bool:
        """Return whether `is_ready` was true before the limit; what is waited for is logged.

        The time of `idle` does not count, which is called at each look.
        """
        start = logged_at = self._source.monotonic()
        _log.info("waiting for %s, at most %g s", what(), timeout_seconds)
        while not is_ready():
            begin = self._source.monotonic()
            idle()
            now = self._source.monotonic()
            start += now - begin
            if now - start >= timeout_seconds:
                return False
            if now - logged_at >= self._log_seconds:
                _log.info("waiting for %s, since %.0f s", what(), now - start)
                logged_at = now
            self._source.sleep(self._poll_seconds)
        return True


class ChiefSyncHook(Hook):
    """The hook that lets workers begin after the restore, and at the end waits for them.

    Args:
        sync_helper: Holds the flags.
        timeout_seconds: Limit on the wait for the workers; the chief then ends without them.
        poll_seconds: Seconds between two looks at the flags.
        log_seconds: Seconds between two lines of the log.
        source: The time.

    Raises:
        ValueError: The limit is negative or not a number.
    """

    def __init__(
        self,
        sync_helper: SyncHelper,
        timeout_seconds: float = 1800,
        *,
        poll_seconds: float = _POLL_SECONDS,
        log_seconds: float = _LOG_SECONDS,
        source: TimeSource = _SYSTEM_TIME,
    ) -> None:
        self._helper = sync_helper
        self._timeout_seconds = check_timeout("[ChiefSyncHook]", timeout_seconds)
        self._waiting = _Waiting(source, poll_seconds, log_seconds)

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Let the workers begin; hooks that restore come earlier."""
        self._helper.mark_restore_done()

    def end(self, run: Run) -> None:
        """Wait until no worker is alive, or time runs out."""
        helper = self._helper
        if self._waiting.until(
            lambda: helper.get_num_alive_workers() == 0,
            self._timeout_seconds,
            lambda: f"workers {helper.get_alive_workers()} to finish",
            lambda: at_boundary(run),  # training may be stopped meanwhile
        ):
            _log.info("all workers have finished")
        else:
            _log.warning(
                "workers %s have not finished within %g s; the chief ends without them",
                helper.get_alive_workers(),
                self._timeout_seconds,
            )


class WorkerSyncHook(Hook):
    """The hook with which a worker waits for the restore, and says that it is alive or finished.

    The chief, worker 0, needs none: the hook does nothing there.

    Args:
        worker_index: Number of this worker.
        sync_helper: Holds the flags.
        timeout_seconds: Limit on the wait for the restore.
        poll_seconds: Seconds between two looks at the flags.
        log_seconds: Seconds between two lines of the log.
        source: The time.

    Raises:
        ValueError: The limit is negative or not a number.
    """

    def __init__(
        self,
        worker_index: int,
        sync_helper: SyncHelper,
        *,
        timeout_seconds: float = _RESTORE_SECONDS,
        poll_seconds: float = _POLL_SECONDS,
        log_seconds: float = _LOG_SECONDS,
        source: TimeSource = _SYSTEM_TIME,
    ) -> None:
        self._index, self._helper = worker_index, sync_helper
        self._timeout_seconds = check_timeout("[WorkerSyncHook]", timeout_seconds)
        self._waiting = _Waiting(source, poll_seconds, log_seconds)

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Mark the worker as alive, and wait until the chief has restored the job.

        Raises:
            DeadlineExceededError: The chief has not done so in time.
        """
        if self._index <= 0:
            return
        helper = self._helper
        helper.start_worker(self._index)
        is_over = self._waiting.until(
            lambda: helper.get_restore_status() or coordinator.stop_requested,
            self._timeout_seconds,
            lambda: "the chief to restore the job",
        )
        if not is_over:
            raise DeadlineExceededError(
                f"[WorkerSyncHook] expected the chief to restore the job within "
                f"{self._timeout_seconds:g} s, got no word (worker {self._index}); look at the log "
                "of worker 0"
            )

    def end(self, run: Run) -> None:
        """Mark the worker as finished."""
        if self._index > 0:
            self._helper.finish_worker(self._index)


class TrainingHooksHelper:
    """Makes the hooks of a process for the start and the end of a job.

    Args:
        enable_sync: Whether there are such hooks.
        num_workers: Number of workers, the chief included.
        worker_idx: Number of this worker; 0 is the chief.
        chief_timeout_seconds: Limit on the wait of the chief for the other workers.
        shared: Holds the flags; None takes those of the current run, or new ones.

    Attributes:
        training_hooks: Hooks of every worker.
        training_chief_hooks: Hooks of the chief.
    """

    def __init__(
        self,
        enable_sync: bool,
        num_workers: int,
        worker_idx: int,
        chief_timeout_seconds: float = 1800,
        *,
        shared: SharedState | None = None,
    ) -> None:
        self.training_hooks: tuple[Hook, ...] = ()
        self.training_chief_hooks: tuple[Hook, ...] = ()
        if enable_sync:
            helper = SyncHelper(num_workers, worker_idx == 0, shared=shared)
            self.training_hooks = (WorkerSyncHook(worker_idx, helper),)
            self.training_chief_hooks = (ChiefSyncHook(helper, chief_timeout_seconds),)
