"""What a controller drives: `Controlled`, and `Operated` for what an operator sees of it."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from monolith.errors import FailedPreconditionError

CALL_SECONDS = 10.0
"""Default limit of a call, saves apart."""

ALREADY_PLACED = "Barrier is placed already."


class BarrierAlreadyPlacedError(FailedPreconditionError):
    """Training is stopped already."""


class BlockStatus(NamedTuple):
    """Which workers stand.

    Attributes:
        blocked: Numbers of the workers that stand.
        unblocked: Numbers of the other workers.
    """

    blocked: Sequence[int]
    unblocked: Sequence[int]


class SavedCheckpoint(NamedTuple):
    """A checkpoint that was asked for.

    Attributes:
        path: Prefix of the checkpoint.
        step: Step of the checkpoint.
    """

    path: str
    step: int


class WorkerState(enum.Enum):
    """What a worker does: its value is the word for it."""

    RUNNING = "running"
    PARKED = "parked"
    SILENT = "silent"
    GONE = "gone"


@dataclass(frozen=True)
class WorkerStatus:
    """The state of a worker.

    Attributes:
        index: Number of the worker.
        state: What the worker does.
        step: Number of steps of this worker.
        samples_per_second: Its speed; 0 unless it is running.
        heard_seconds: Seconds since server 0 heard of it; 0 in a run of one process.
    """

    index: int
    state: WorkerState
    step: int
    samples_per_second: float = 0.0
    heard_seconds: float = 0.0


@dataclass(frozen=True)
class RunStatus:
    """The state of a run.

    Attributes:
        step: Number of steps of all workers.
        is_stopped: Whether a stop is in force.
        workers: State of each worker.
        checkpoint: Prefix of the newest complete checkpoint; empty without one.
        samples: Number of samples that all workers have trained.
        lost_pushes: Number of pushes that servers had done and lost.
        task: Name of the task.
    """

    step: int
    is_stopped: bool
    workers: Sequence[WorkerStatus]
    checkpoint: str = ""
    samples: int = 0
    lost_pushes: int = 0
    task: str = ""

    def named(self, state: WorkerState) -> list[int]:
        """Return the numbers of the workers in a state."""
        return [worker.index for worker in self.workers if worker.state is state]


class RowValues(NamedTuple):
    """A row of a table.

    Attributes:
        table: Name of the table.
        time: Time of the last update, in seconds since 1970.
        columns: Name of a column -> its values: weights, and state of the optimizer.
    """

    table: str
    time: int
    columns: Mapping[str, Sequence[float]]


class Controlled(Protocol):
    """A run that a controller stops, resumes and saves. Thread-safe.

    Each call has a limit on its wait; one whose limit was too short raises `OpError`.
    """

    def stop(self, timeout_seconds: float = CALL_SECONDS) -> None:
        """Let all workers stand at their next step boundary.

        Raises:
            BarrierAlreadyPlacedError: Training is stopped already.
        """

    def resume(self, timeout_seconds: float = CALL_SECONDS) -> None:
        """Let the workers go on; does nothing if training is not stopped."""

    def block_status(self, timeout_seconds: float = CALL_SECONDS) -> BlockStatus:
        """Return which workers stand."""

    def save(self, timeout_seconds: float) -> SavedCheckpoint:
        """Save at the next step boundary; return when the checkpoint is stored.

        Raises:
            DeadlineExceededError: There was no step boundary in time.
        """

    def global_step(self, timeout_seconds: float = CALL_SECONDS) -> int:
        """Return the number of steps of all workers."""


class Operated(Controlled, Protocol):
    """A run that also tells an operator how it goes."""

    def status(self, timeout_seconds: float = CALL_SECONDS) -> RunStatus:
        """Return the state of the run and of its workers."""

    def rows(self, key: int, table: str, timeout_seconds: float = CALL_SECONDS) -> list[RowValues]:
        """Return the rows of a key.

        Args:
            key: Key, as a signed number of 64 bits.
            table: Name of a table; empty for all tables.
            timeout_seconds: Limit on the wait.

        Raises:
            NotFoundError: There is no such table.
        """
