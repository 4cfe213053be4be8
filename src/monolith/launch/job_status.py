"""State of a job and of its roles at one moment, as views show it."""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PS, WORKER = "ps", "worker"
"""Kinds of roles: a parameter server and a worker."""


class RoleState(enum.Enum):
    """State of a role.

    Attributes:
        STARTING: The process runs and has not reported yet.
        RUNNING: The process has reported that it is ready, or figures.
        WAITING: The process died and starts again soon.
        STOPPING: The process got SIGTERM of the launcher.
        ENDED: The process ended and does not start again.
        FAILED: The process failed and ended the job.
    """

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "restarting"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True)
class RoleStatus:
    """State of one role.

    Attributes:
        name: Name of the role, such as `worker-0`.
        kind: "ps" or "worker".
        state: State of the role.
        pid: Number of the newest process; None before the first start.
        num_restarts: Number of restarts so far.
        last_exit: End of the newest process that ended, such as "signal SIGKILL"; None without one.
        figures: Last figures that the process reported, by name.
    """

    name: str
    kind: str
    state: RoleState
    pid: int | None = None
    num_restarts: int = 0
    last_exit: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)

    def number(self, name: str) -> float:
        """Return a figure; 0 if the role has not reported the figure."""
        value = self.figures.get(name)
        return value if isinstance(value, int | float) else 0

    def as_json(self) -> dict[str, Any]:
        """Return the state as values of JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state.value,
            "pid": self.pid,
            "restarts": self.num_restarts,
            "last_exit": self.last_exit,
            "figures": dict(self.figures),
        }


@dataclass(frozen=True)
class JobStatus:
    """State of a job.

    Attributes:
        seconds: Seconds since the launcher started the job.
        roles: States of the roles, servers first.

    Example:
        >>> figures = {"step": 20, "samples_per_second": 900.0}
        >>> roles = [RoleStatus(f"worker-{i}", WORKER, RoleState.RUNNING, figures=figures)
        ...     for i in range(2)]
        >>> status = JobStatus(4.0, tuple(roles))
        >>> status.step, status.samples_per_second
        (20, 1800.0)
    """

    seconds: float
    roles: tuple[RoleStatus, ...]

    @property
    def step(self) -> int:
        """Largest step that a worker reported."""
        return int(max((role.number("step") for role in self._of(WORKER)), default=0))

    @property
    def samples_per_second(self) -> float:
        """Sum of the last rates of the workers that run."""
        running = [role for role in self._of(WORKER) if role.state is RoleState.RUNNING]
        return sum(role.number("samples_per_second") for role in running)

    @property
    def num_rows(self) -> int:
        """Number of rows of all servers, or as a rank reports it."""
        if not self._of(PS):
            return int(max((role.number("num_rows") for role in self._of(WORKER)), default=0))
        return int(sum(role.number("rows") for role in self._of(PS)))

    @property
    def num_restarts(self) -> int:
        """Number of restarts of all roles."""
        return sum(role.num_restarts for role in self.roles)

    def _of(self, kind: str) -> list[RoleStatus]:
        return [role for role in self.roles if role.kind == kind]

    def as_json(self) -> dict[str, Any]:
        """Return the state as values of JSON."""
        return {
            "seconds": round(self.seconds, 3),
            "step": self.step,
            "samples_per_second": self.samples_per_second,
            "rows": self.num_rows,
            "restarts": self.num_restarts,
            "roles": [role.as_json() for role in self.roles],
        }


class JobEnd(NamedTuple):
    """End of a job.

    Attributes:
        status: Exit status of the launcher: 0, 1, or 128 plus the number of a signal.
        reason: Reason in words.
        job: State of the job at its end.
        result: Last object that worker 0 printed; None without one.
    """

    status: int
    reason: str
    job: JobStatus
    result: Mapping[str, Any] | None = None


def parse_object(line: str) -> dict[str, Any] | None:
    """Return the JSON object of a line, with None for numbers that are not finite; None for text.

    Example:
        >>> parse_object('{"loss": NaN}'), parse_object("listens at port 7000")
        ({'loss': None}, None)
    """
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line, parse_constant=lambda name: None)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
