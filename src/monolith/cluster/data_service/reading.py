"""`Reading`: which shares of the data were handed out, to whom, and up to which position."""

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from monolith.cluster.job.job_values import Taken, is_share, share_of
from monolith.errors import AbortedError, FailedPreconditionError, InvalidArgumentError

_STATE = frozenset({"names", "next", "open"})


def digest_of(names: Sequence[str]) -> str:
    """Return a short text that differs for other names or another order."""
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:16]


def check_state(state: Any) -> dict[str, Any]:
    """Return the state of a reading: a dict with "names", "next" and "open".

        names   digest of the shares' names
        next    number of the next share, counted over all epochs
        open    share -> position, of the shares before that have not ended

    Raises:
        InvalidArgumentError: The value is none.
    """
    is_right = (
        type(state) is dict
        and state.keys() == _STATE
        and type(state["names"]) is str
        and type(state["next"]) is int
        and 0 <= state["next"] < 1 << 62
        and type(state["open"]) is dict
        and all(map(is_share, state["open"]))
    )
    if not is_right:
        raise InvalidArgumentError(
            f"[Reading] expected names, next and open of a reading, got {state!r:.100}"
        )
    checked: dict[str, Any] = state
    return checked


class Reading:
    """One pass of one or several trainers over the data of a service. Not thread-safe.

    Each share is handed out to one reader at a time. The shares of a reader that is gone are
    handed out again, from the last position that it reported.

    Args:
        names: Names of the shares of an epoch, in the order in which they are handed out.
        num_epochs: Number of epochs; -1 has no end.
        state: Where the reading goes on; None begins it.

    Attributes:
        num_returned: Number of shares that readers gave back and that were not read to their end.

    Raises:
        FailedPreconditionError: The state is that of other data.

    Example:
        >>> reading = Reading(["a", "b"], num_epochs=1)
        >>> reading.join(7)
        >>> reading.take(7).share, reading.take(7).share, reading.take(7).kind
        ('[0, "a"]', '[0, "b"]', 'wait')
        >>> reading.report(7, ended=['[0, "a"]', '[0, "b"]'], positions={})
        >>> reading.take(7).kind
        'end'
    """

    def __init__(
        self, names: Sequence[str], num_epochs: int, state: Mapping[str, Any] | None = None
    ) -> None:
        self._names, self._num_epochs = list(names), num_epochs
        self._next = 0
        self._returned: deque[tuple[str, Any]] = deque()
        self._taken: dict[int, dict[str, Any]] = {}  # reader -> share -> position
        self.num_returned = 0
        if state is not None:
            if state["names"] != digest_of(names):
                raise FailedPreconditionError(
                    "[Reading] expected the data of which the position was taken, got other shares "
                    f"of it, {len(names)} now; start the data workers with the files and settings "
                    "of then, and the dispatcher with the same --workers"
                )
            self._next = state["next"]
            self._returned.extend(state["open"].items())

    @property
    def num_readers(self) -> int:
        """Number of readers that are there."""
        return len(self._taken)

    def join(self, reader: int) -> None:
        """Let a reader in."""
        self._taken.setdefault(reader, {})

    def leave(self, reader: int) -> None:
        """Give back what a reader has, whose number may be unknown."""
        shares = self._taken.pop(reader, {})
        self.num_returned += len(shares)
        self._returned.extend(shares.items())

    def report(self, reader: int, ended: Sequence[str], positions: Mapping[str, Any]) -> None:
        """Note which shares a reader has read to their end, and its positions in others.

        Raises:
            AbortedError: The reader is unknown, because it was given up.
        """
        taken = self._shares_of(reader)
        for share, position in positions.items():
            if share in taken:
                taken[share] = position
        for share in ended:
            taken.pop(share, None)

    def take(self, reader: int) -> Taken:
        """Return the next share for a reader.

        Raises:
            AbortedError: The reader is unknown, because it was given up.
        """
        taken = self._shares_of(reader)
        if self._returned:
            share, position = self._returned.popleft()
        elif self._names and (
            self._num_epochs < 0 or self._next < self._num_epochs * len(self._names)
        ):
            epoch, number = divmod(self._next, len(self._names))
            share, position = share_of(epoch, self._names[number]), None
            self._next += 1
        else:
            return Taken("wait" if any(self._taken.values()) else "end")
        taken[share] = position
        return Taken("share", share, position)

    def state(self) -> dict[str, Any]:
        """Return where the reading is, by what was reported, as JSON accepts it."""
        opened = [item for taken in self._taken.values() for item in taken.items()]
        return {
            "names": digest_of(self._names),
            "next": self._next,
            "open": dict([*opened, *self._returned]),
        }

    def _shares_of(self, reader: int) -> dict[str, Any]:
        taken = self._taken.get(reader)
        if taken is None:
            raise AbortedError(
                "[Reading] expected a reader of the data, got one that was given up because it was "
                "silent; start it again"
            )
        return taken
