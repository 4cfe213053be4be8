"""`Supervisor`: starts the roles of a job, restarts those that die, and ends all of them."""

import contextlib
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from monolith.launch.job_status import PS, WORKER, JobEnd, JobStatus, RoleState
from monolith.launch.job_view import View
from monolith.launch.role_process import Role, RoleProcess, exit_text

_TURN_SECONDS = 0.05  # between two looks at processes that may have ended
_CHANGE_SECONDS = 0.5  # between two looks at what a save writes
_MAX_PAUSE_SECONDS = 30.0
_KILL_SECONDS = 5.0  # until a process that got SIGKILL is left to the system
_SERVERS_SHARE = 0.25  # of the time to end, for servers after the workers
_WRONG_USAGE_STATUS = 2
_FIRST_SIGNAL_STATUS = 128  # a process that ends by a signal in order adds its number
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Policy:
    """When a `Supervisor` starts a role again, and how long it waits for ends.

    Args:
        restarts: Number of restarts of a role; one more death ends the job.
        pause_seconds: Seconds before the first restart of a role; each next pause is twice as long.
        grace_seconds: Seconds from SIGTERM to SIGKILL when a job is ended, servers included. The
            time begins anew whenever a save has made progress.
        server_seconds: Seconds that servers have to end by themselves after the last worker, and
            other workers after worker 0 and the servers; a server that ends earlier than the
            workers by more than this time counts as dead.

    Raises:
        ValueError: A number is below 0.
    """

    restarts: int = 3
    pause_seconds: float = 0.5
    grace_seconds: float = 10.0
    server_seconds: float = 5.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise ValueError(f"[Policy] expected {name} >= 0, got {value!r}")

    def pause_before(self, num_restarts: int) -> float:
        """Return the seconds before the restart after a number of restarts.

        Example:
            >>> [Policy().pause_before(number) for number in (0, 1, 20)]
            [0.5, 1.0, 30.0]
        """
        return min(self.pause_seconds * 2.0 ** min(num_restarts, 60), _MAX_PAUSE_SECONDS)


class Supervisor:
    """Runs the roles of a job as processes, until all workers have ended or one role fails.

    Args:
        roles: Servers and workers with their command lines.
        logs: Folder of the log files, one for each role.
        view: View of the job.
        policy: Restarts and waits.
        save_state: Function that returns a value that differs from the last one if a save has made
            progress; it is called while the job ends.

    Attributes:
        has_lost_role: Whether the job failed because a role that had worked died too often.

    Example:
        >>> import tempfile
        >>> from rich.console import Console
        >>> from monolith.launch.job_view import JobView
        >>> worker = Role("worker", 0, ("echo", '{"ended": "steps"}'))
        >>> with tempfile.TemporaryDirectory() as logs, JobView(Console(stderr=True)) as view:
        ...     end = Supervisor([worker], logs, view).run()
        >>> end.status, end.reason, end.result
        (0, 'all workers ended', {'ended': 'steps'})
    """

    def __init__(
        self,
        roles: Sequence[Role],
        logs: str,
        view: View,
        policy: Policy | None = None,
        *,
        save_state: Callable[[], Any] = lambda: None,
    ) -> None:
        self._view, self._policy, self._save_state = view, policy or Policy(), save_state
        self._selector = selectors.DefaultSelector()
        self._processes = [
            RoleProcess(role, os.path.join(logs, f"{role.name}.log"), view.line, self._selector)
            for role in roles
        ]
        self._restart_times: dict[RoleProcess, float] = {}
        self._early_ends: dict[RoleProcess, float] = {}  # servers that ended before the workers
        self._signals: list[signal.Signals] = []
        self._is_view_gone = self.has_lost_role = False
        self._start = time.monotonic()
        self._next_view = self._start + view.interval_seconds

    def run(self) -> JobEnd:
        """Start all roles and return when all processes have ended.

        In the main thread, the first SIGINT, SIGTERM or SIGHUP ends the job, and the next one kills
        its processes.
        """
        with self._handlers(), self._selector:
            try:
                for process in self._processes:
                    process.start()
                status, reason = self._watch()
                if status == 0:
                    self._end_by_themselves(WORKER)
                    self._end_by_themselves(PS)
                else:
                    self._stop()
            finally:
                self._kill(self._processes, reason=None)
        chief = next((p for p in self._processes if p.role.kind == WORKER), None)
        return JobEnd(status, reason, self.status, None if chief is None else chief.result)

    @property
    def signal_end(self) -> tuple[int, str] | None:
        """Exit status and reason of the first signal; None without a signal."""
        if not self._signals:
            return None
        number = self._signals[0]
        return _FIRST_SIGNAL_STATUS + number, f"ended by {number.name}"

    @property
    def status(self) -> JobStatus:
        """State of the job."""
        return JobStatus(
            time.monotonic() - self._start, tuple(process.status for process in self._processes)
        )

    def _watch(self) -> tuple[int, str]:
        """Return exit status and reason when the job is over; processes may still run."""
        while True:
            for process in self._turn():
                if (failure := self._take_end(process)) is not None:
                    return 1, failure
            now = time.monotonic()
            for process, end in list(self._early_ends.items()):
                if now - end > self._policy.server_seconds:
                    del self._early_ends[process]
                    if (failure := self._take_death(process)) is not None:
                        return 1, failure
            for process in [p for p, due in self._restart_times.items() if due <= now]:
                del self._restart_times[process]
                process.start()
            if (signal_end := self.signal_end) is not None:
                name = self._signals[0].name
                self._view.note(f"{name}: the workers end first; again to kill all")
                return signal_end
            if self._is_view_gone:
                return 1, "the reader of stdout is gone"
            if self._is_over or all(p.state is RoleState.ENDED for p in self._of(WORKER)):
                return 0, "all workers ended"

    def _take_end(self, process: RoleProcess) -> str | None:
        """Note that a process ended; return the reason if the job ends with it."""
        if process.exit_code == 0:
            process.state = RoleState.ENDED
            if process.role.kind == PS:  # servers end when the chief says so, or by SIGTERM
                self._early_ends[process] = time.monotonic()
            return None
        return self._take_death(process)

    def _take_death(self, process: RoleProcess) -> str | None:
        """Plan the next start of a role; return the reason if the role has failed."""
        if self._is_over:
            process.state = RoleState.ENDED
            return None
        name, exited = process.role.name, exit_text(process.exit_code)
        used, allowed = process.num_starts - 1, self._policy.restarts
        # An error before the first sign of life is a mistake, such as a wrong option.
        is_mistake = process.exit_code == _WRONG_USAGE_STATUS or (
            0 < process.exit_code < _FIRST_SIGNAL_STATUS and not process.is_ready
        )
        if is_mistake or used >= allowed:
            process.state = RoleState.FAILED
            self.has_lost_role = not is_mistake
            num = f" after {used} restart{'' if used == 1 else 's'}" if used else ""
            self._view.note(
                "\n".join([f"{name} failed{num}: {exited}; its last lines:", *_last(process)])
            )
            return f"{name} failed{num}: {exited}"
        pause = self._policy.pause_before(used)
        process.state = RoleState.WAITING
        self._restart_times[process] = time.monotonic() + pause
        self._view.note(f"{name}: {exited}; restart {used + 1} of {allowed} in {pause:g} s")
        return None

    @property
    def _is_over(self) -> bool:
        """Whether worker 0 and the servers have ended the job; who comes later has no work."""
        chief, servers = self._of(WORKER)[:1], self._of(PS)
        return bool(servers) and all(p.state is RoleState.ENDED for p in [*chief, *servers])

    def _end_by_themselves(self, kind: str) -> None:
        """Wait until roles have ended by themselves, and end those that have not."""
        processes, num_signals = self._of(kind), len(self._signals)
        self._wait(processes, self._policy.server_seconds, num_signals)
        self._end(processes, self._policy.grace_seconds, num_signals)

    def _stop(self) -> None:
        """End the workers, of which the chief may save, and then the servers."""
        seconds, num_signals = self._policy.grace_seconds, len(self._signals)
        self._end(self._of(WORKER), seconds * (1 - _SERVERS_SHARE), num_signals)
        self._end(self._of(PS), seconds * _SERVERS_SHARE, num_signals)

    def _end(self, processes: list[RoleProcess], seconds: float, num_signals: int) -> None:
        """Send SIGTERM, wait, and send SIGKILL."""
        for process in processes:
            if process.state is RoleState.WAITING:
                process.state = RoleState.ENDED
            process.terminate()
        self._wait(processes, seconds, num_signals)
        is_hurried = len(self._signals) > num_signals
        self._kill(processes, "a second signal" if is_hurried else f"not ended after {seconds:g} s")

    def _wait(self, processes: list[RoleProcess], seconds: float, num_signals: int) -> None:
        """Return when all processes have ended, at a new signal, or when the time is over."""
        state, next_look = self._save_state(), 0.0
        deadline = time.monotonic() + seconds
        while any(process.is_alive for process in processes):
            now = time.monotonic()
            if now >= next_look:
                next_look = now + _CHANGE_SECONDS
                if state != (state := self._save_state()):
                    deadline = now + seconds
            if now >= deadline or len(self._signals) > num_signals:
                return
            for process in self._turn():
                process.state = RoleState.ENDED

    def _kill(self, processes: list[RoleProcess], reason: str | None) -> None:
        """Send SIGKILL to what runs, and wait for the ends."""
        running = [process for process in processes if process.is_alive]
        for process in running:
            if reason is not None:
                self._view.note(f"{process.role.name}: SIGKILL, {reason}")
            process.kill()
        deadline = time.monotonic() + _KILL_SECONDS
        while any(process.is_alive for process in running) and time.monotonic() < deadline:
            for process in running:
                if process.reap():
                    process.state = RoleState.ENDED
            time.sleep(_TURN_SECONDS / 10)

    def _turn(self) -> list[RoleProcess]:
        """Read outputs for a moment, show the job if it is time; return processes that ended."""
        for key, _ in self._selector.select(_TURN_SECONDS):
            key.data.read()
        if not self._selector.get_map():  # no process runs
            time.sleep(_TURN_SECONDS)
        now = time.monotonic()
        if now >= self._next_view and not self._is_view_gone:
            self._next_view = now + self._view.interval_seconds
            try:
                self._view.show(self.status)
            except BrokenPipeError:
                self._is_view_gone = True
        return [process for process in self._processes if process.reap()]

    def _of(self, kind: str) -> list[RoleProcess]:
        return [process for process in self._processes if process.role.kind == kind]

    @contextlib.contextmanager
    def _handlers(self) -> Iterator[None]:
        """Collect signals; those that this process ignores, as under nohup, stay ignored."""
        previous: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    previous[number] = signal.signal(number, self._take_signal) or signal.SIG_DFL
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _take_signal(self, number: int, frame: Any) -> None:
        self._signals.append(signal.Signals(number))


def _last(process: RoleProcess) -> list[str]:
    return [f"  {line}" for line in process.tail] or ["  (none)"]
