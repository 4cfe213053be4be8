"""`RoleProcess`: the process of a role over all its starts, with its log file and its figures."""

import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from monolith.environment import variables
from monolith.launch.job_status import RoleState, RoleStatus, parse_object

_GUARD = str(Path(__file__).with_name("guarded_exec.py"))
_READ_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 20  # a longer line is cut into several
_MAX_LAST_READS = 64  # of a pipe whose process ended; a process outside of its group may write on
_TAIL_LINES = 20


@dataclass(frozen=True)
class Role:
    """A server or a worker of a job.

    Args:
        kind: "ps" or "worker".
        index: Number of the role among those of its kind.
        command: Command line.
        environment: Variables beside those of the launcher.
        title: Name of the role; empty takes that of its kind and number.

    Example:
        >>> Role("worker", 1, ("true",)).name
        'worker-1'
    """

    kind: str
    index: int
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    title: str = ""

    @property
    def name(self) -> str:
        """Name of the role, for logs and views."""
        return self.title or f"{self.kind}-{self.index}"


class Pipe:
    """One output of a process, cut into lines. A read never waits for the process.

    Args:
        file: Reading end of the pipe.
        take: Function that receives each line.
        selector: Selector that watches the pipe until its end; `data` of its key is this object.
    """

    def __init__(
        self, file: IO[bytes], take: Callable[[str], None], selector: selectors.BaseSelector
    ) -> None:
        self._file, self._take, self._selector, self._rest = file, take, selector, b""
        os.set_blocking(file.fileno(), False)
        selector.register(file, selectors.EVENT_READ, self)

    def read(self) -> bool:
        """Take the lines that are there; whether there was data."""
        try:
            block = os.read(self._file.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        if not block:
            self._end()
            return False
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._take(line.decode(errors="replace").rstrip("\r"))
        return True

    def close(self) -> None:
        """Take what an ended process left in the pipe, and close the pipe."""
        for _ in range(_MAX_LAST_READS):
            if self._file.closed or not self.read():
                break
        self._end()

    def _end(self) -> None:
        if self._file.closed:
            return
        if self._rest:
            self._take(self._rest.decode(errors="replace"))
        self._selector.unregister(self._file)
        self._file.close()


class RoleProcess:
    """The process of a role over all its starts.

    The thread that starts a process has to live as long as the process: see `guarded_exec.py`.

    Args:
        role: Role with its command line.
        log_path: Log file; each start appends a header and the lines of both outputs.
        tell: Function that receives the name of the role and each line that is no JSON object.
        selector: Selector that watches the outputs.

    Attributes:
        state: State of the role.
        exit_code: Exit code of the newest process that ended; below 0 is the number of a signal.
        num_starts: Number of starts so far.
        is_ready: Whether a process of the role has ever reported.
        result: Last object of a process that ended its part of the job; None without one.
        tail: Last lines of the error output of the newest process.
    """

    def __init__(
        self,
        role: Role,
        log_path: str,
        tell: Callable[[str, str], None],
        selector: selectors.BaseSelector,
    ) -> None:
        self.role, self._log_path, self._tell = role, log_path, tell
        self._selector = selector
        self.state, self.exit_code = RoleState.WAITING, 0
        self.num_starts, self.is_ready = 0, False
        self.result: Mapping[str, Any] | None = None
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._last_exit: str | None = None
        self._figures: Mapping[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._pipes: list[Pipe] = []
        self._log: IO[str] | None = None

    @property
    def pid(self) -> int | None:
        """Number of the newest process."""
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether a process runs whose end `reap` has not seen."""
        return self._process is not None and self._process.returncode is None

    @property
    def status(self) -> RoleStatus:
        """State of the role for views."""
        return RoleStatus(
            self.role.name,
            self.role.kind,
            self.state,
            self.pid,
            max(0, self.num_starts - 1),
            self._last_exit,
            self._figures,
        )

    def start(self) -> None:
        """Start a process."""
        self.num_starts += 1
        self.state, self._figures = RoleState.STARTING, {}
        self.tail.clear()
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        self._log = open(  # noqa: SIM115
            self._log_path, "a", encoding="utf-8", errors="backslashreplace", buffering=1
        )
        more = [f"{name}={value}" for name, value in self.role.environment.items()]
        words = shlex.join([*more, *self.role.command])
        self._write(f"-- start {self.num_starts} at {now}: {words}")
        # A session of its own: Ctrl-C of a terminal reaches the launcher only, and a process that
        # the role starts is in the group of the role.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _GUARD, str(os.getpid()), *self.role.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**variables(""), **self.role.environment},
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pipes = [
            Pipe(self._process.stdout, self._take_output, self._selector),
            Pipe(self._process.stderr, self._take_error, self._selector),
        ]

    def reap(self) -> bool:
        """Whether the process has ended; if so, kill the rest of its group and close its files."""
        if self._process is None or self._process.returncode is not None:
            return False
        # The ended process is not collected yet, so that its number still names its own group.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self._process.pid, flags) is None:
            return False
        self.kill()
        self.exit_code = self._process.wait()
        self._last_exit = exit_text(self.exit_code)
        for pipe in self._pipes:
            pipe.close()
        self._write(f"-- ended: {self._last_exit}")
        if self._log is not None:
            self._log.close()
        return True

    def terminate(self) -> None:
        """Send SIGTERM to the process, if it runs."""
        if self.is_alive and self.pid is not None:
            self.state = RoleState.STOPPING
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process and to all processes of its group, if it runs."""
        if self.is_alive and self.pid is not None:
            os.killpg(self.pid, signal.SIGKILL)

    def _take_output(self, line: str) -> None:
        self._write(line)
        value = parse_object(line)
        if value is None:
            if line:
                self._tell(self.role.name, line)
            return
        event = value.get("event")
        if "ended" in value or event == "ended":
            self.result = value
            return
        if event != "ready":
            self._figures = {name: figure for name, figure in value.items() if name != "event"}
        self.is_ready = True
        if self.state is RoleState.STARTING:
            self.state = RoleState.RUNNING

    def _take_error(self, line: str) -> None:
        self._write(line)
        self.tail.append(line)
        self._tell(self.role.name, line)

    def _write(self, line: str) -> None:
        """Write a line to the log; a full disk ends the log, not the job."""
        if self._log is None or self._log.closed:
            return
        try:
            self._log.write(line + "\n")
        except OSError as error:
            self._log = None
            self._tell(self.role.name, f"(no longer written to {self._log_path}: {error.strerror})")


def exit_text(code: int) -> str:
    """Return an exit code in words.

    Example:
        >>> exit_text(1), exit_text(-9)
        ('exit status 1', 'signal SIGKILL')
    """
    if code >= 0:
        return f"exit status {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"signal {known.get(-code, -code)}"
