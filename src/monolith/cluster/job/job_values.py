"""The values that workers and `JobState` exchange."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from monolith.cluster.job.dense_shard import NamedTensors
from monolith.errors import InvalidArgumentError

_MOST = (1 << 63) - 1
_MAX_FINISHED = 100_000


class Progress(NamedTuple):
    """What one worker step has trained of a share.

    Attributes:
        share: Share, as `take` gave it.
        position: Position in the share after the step.
        is_last: Whether the step ends the share.
        num_samples: Number of samples of the step in this share.
    """

    share: str
    position: Any
    is_last: bool
    num_samples: int


class Taken(NamedTuple):
    """The answer to a worker that asks for data.

    Attributes:
        kind: "share", "wait" (ask again: others may give a share back), or "end".
        share: Share, if there is one.
        position: Position after what was trained of the share; None is its begin.
    """

    kind: str
    share: str = ""
    position: Any = None


class News(NamedTuple):
    """What a worker watches.

    Attributes:
        number: Counts changes of the rest.
        hold: Number of the hold for which pushes must wait; 0 without one.
        hold_seconds: Seconds for which a hold lasts at most.
        is_stopping: Whether workers are to end after their running step.
        park: Counts stops and resumes; training is stopped while it is odd.
    """

    number: int
    hold: int
    hold_seconds: float
    is_stopping: bool
    park: int = 0


class Counts(NamedTuple):
    """Numbers of a job since its begin.

    Attributes:
        steps: Worker steps that were applied.
        samples: Samples of these steps.
        repeats: Samples that were trained more than once.
        lost_pushes: Pushes that a server had done and lost, over all servers.
        dropped: Workers that were given up, with or without a restart.
    """

    steps: int
    samples: int
    repeats: int
    lost_pushes: int
    dropped: int


class StepAnswer(NamedTuple):
    """The answer of a server to a step.

    Attributes:
        version: Number of steps of the server's dense parameters.
        num_steps: Number of steps of the job; 0 but of server 0.
        repeats: Number of samples that were trained more than once; 0 but of server 0.
        values: Parameters of the server after the step, if they were asked for.
    """

    version: int
    num_steps: int
    repeats: int
    values: NamedTensors


ProgressFields = tuple[str, Any, bool, int]
"""A `Progress`, as it travels."""


@dataclass
class HeldShares:
    """What a worker has of the data.

    Attributes:
        taken: Share -> position after the last step.
        finished: Shares that were trained to their end, without very old ones.
        samples: Number of samples, over all starts of the worker.
    """

    taken: dict[str, Any]
    finished: list[str]
    samples: int

    def add(self, progress: Sequence[ProgressFields]) -> None:
        """Note a step."""
        for share, position, is_last, num_samples in progress:
            self.samples += num_samples
            if share in self.taken and is_last:
                del self.taken[share]
                self.finished.append(share)
            elif share in self.taken:
                self.taken[share] = position
        del self.finished[:-_MAX_FINISHED]


class SavedJob(NamedTuple):
    """The state of a job in a checkpoint, as JSON accepts it.

    Attributes:
        names: Names of the shares of an epoch; None before they are known.
        num_epochs: Number of epochs; -1 never ends.
        epoch: Number of the newest epoch.
        queue: Shares of the epoch that nobody has had.
        returned: Shares that are handed out again, with positions: of all workers, too.
        gone: Shares that are not handed out when their turn comes.
        first_step: Steps before this start of the job.
        first_samples: Samples before this start of the job.
        repeats: Samples that were trained more than once.
        lost_pushes: Pushes that a server had done and lost.
        num_dropped: Workers that were given up.
        alive: Numbers of the workers.
        numbers: Worker, number of its last step, and its samples.
    """

    names: list[str] | None
    num_epochs: int
    epoch: int
    queue: dict[str, Any]
    returned: list[tuple[str, Any]]
    gone: list[str]
    first_step: int
    first_samples: int
    repeats: int
    lost_pushes: int
    num_dropped: int
    alive: list[int]
    numbers: list[tuple[int, int, int]]

    @property
    def left(self) -> list[tuple[str, Any]]:
        """Shares up to the newest epoch that are not trained to their end, with positions."""
        first, end = self.queue["offset"], self.queue["arr_size"]
        waiting = [share for share in self.queue["elements"][first:end] if share not in self.gone]
        return [*self.returned, *((share, None) for share in waiting)]

    @property
    def num_samples(self) -> int:
        """Number of samples that were trained."""
        return self.first_samples + sum(samples for _, _, samples in self.numbers)

    @classmethod
    def begun(
        cls,
        names: Sequence[str],
        num_epochs: int | None,
        epoch: int,
        left: Sequence[tuple[str, Any]],
        *,
        num_steps: int,
    ) -> "SavedJob":
        """Return the state of a job that begins with shares of an earlier run.

        Args:
            names: Names of the shares of an epoch.
            num_epochs: Number of epochs; None never ends.
            epoch: Number of the newest epoch; its shares are those of `left`.
            left: Shares with positions.
            num_steps: Number of steps of the earlier run.
        """
        number = -1 if num_epochs is None else num_epochs
        queue = {"elements": [], "offset": 0, "arr_size": 0}
        nothing: tuple[list[int], list[tuple[int, int, int]]] = [], []
        return cls(
            list(names), number, epoch, queue, list(left), [], num_steps, 0, 0, 0, 0, *nothing
        )

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "SavedJob":
        """Return the state that was written as JSON.

        Raises:
            InvalidArgumentError: It is none.
        """
        is_right = set(state) == set(cls._fields) and all(
            is_right(state[name]) for name, is_right in _SAVED.items()
        )
        if not is_right:
            wrong = [n for n in cls._fields if n not in state or not _SAVED[n](state[n])]
            raise InvalidArgumentError(
                f"[SavedJob] expected the fields of a job, got others or wrong values: {wrong}"
            )
        returned = [(share, position) for share, position in state["returned"]]
        numbers = [(worker, number, samples) for worker, number, samples in state["numbers"]]
        return cls(**{**state, "returned": returned, "numbers": numbers})


def check_facts(facts: Any) -> None:
    """Refuse what is no dict of lists of lines.

    Raises:
        InvalidArgumentError: It is none.
    """
    if type(facts) is not dict or not all(map(_is_texts, facts.values())):
        raise InvalidArgumentError("[JobHost.join_job] expected facts as a dict of lists of lines")


def check_same_facts(ours: Mapping[str, Any], theirs: Mapping[str, Any], worker: int) -> None:
    """Refuse a worker whose facts differ from those of the workers before it.

    Raises:
        InvalidArgumentError: They differ.
    """
    difference = first_difference(ours, theirs)
    if difference is not None:
        raise InvalidArgumentError(
            f"[JobState.join] expected the task of the first worker, with {difference[0]!r}, got "
            f"{difference[1]!r} (worker {worker}); start all processes with the same task and "
            "settings"
        )


def check_held(held: Any) -> None:
    """Refuse what is not what a worker has, as `JobState.join` takes it.

    Raises:
        InvalidArgumentError: It is none.
    """
    is_right = type(held) is dict and set(held) <= set(_HELD)
    wrong = [n for n, value in held.items() if not _HELD[n](value)] if is_right else [held]
    if wrong:
        raise InvalidArgumentError(
            f"[JobHost.join_job] expected held shares and counts of a worker, got {wrong!r:.100}"
        )


def is_share(text: Any) -> bool:
    """Whether a text is one of `share_of`."""
    try:
        epoch, name = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return False
    return _is_count(epoch) and type(name) is str


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_list(is_item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(map(is_item, value))


_is_texts, _is_shares = _is_list(lambda text: type(text) is str), _is_list(is_share)


def _is_returned(item: Any) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and is_share(item[0])


def _is_numbers(item: Any) -> bool:
    return isinstance(item, list | tuple) and len(item) == 3 and all(map(_is_count, item))


_HELD: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {
        "taken": lambda value: type(value) is dict and all(map(is_share, value)),
        "finished": _is_shares,
        **dict.fromkeys(("number", "samples", "repeats", "park"), _is_count),
    }
)

_SAVED: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {
        "names": lambda value: value is None or _is_texts(value),
        **dict.fromkeys(("num_epochs", "epoch"), lambda v: type(v) is int and -1 <= v <= _MOST),
        "queue": lambda value: type(value) is dict and _is_shares(value.get("elements")),
        "returned": _is_list(_is_returned),
        "gone": _is_shares,
        "first_step": lambda value: type(value) is int and -_MOST <= value <= _MOST,
        **dict.fromkeys(("first_samples", "repeats", "lost_pushes", "num_dropped"), _is_count),
        "alive": _is_list(_is_count),
        "numbers": _is_list(_is_numbers),
    }
)


def share_of(epoch: int, name: str) -> str:
    """Return the text of a share in an epoch.

    Example:
        >>> share_of(1, "part-7")
        '[1, "part-7"]'
    """
    return json.dumps([epoch, name])


def name_of(share: str) -> tuple[int, str]:
    """Return epoch and name of a share."""
    epoch, name = json.loads(share)
    return epoch, name


def first_difference(ours: Any, theirs: Any) -> tuple[Any, Any] | None:
    """Return the first lines that differ between two facts; None if there are none."""
    for name in sorted({*ours, *theirs}):
        mine, other = ours.get(name, []), theirs.get(name, [])
        for ours_line, theirs_line in itertools.zip_longest(mine, other, fillvalue="nothing"):
            if ours_line != theirs_line:
                return ours_line, theirs_line
    return None
