"""The values that workers and `JobState` exchange."""

import itertools
import json
from typing import Any, NamedTuple


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
    """

    number: int
    hold: int
    hold_seconds: float
    is_stopping: bool


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
