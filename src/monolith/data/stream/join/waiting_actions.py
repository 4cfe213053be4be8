"""`WaitingActions`: actions whose impression has not come."""

import numpy as np
import pyarrow as pa

from monolith.data.operations.sample_rows import Ids, Mask

_NAMES = ("key", "time", "kind")


class WaitingActions:
    """Actions without an impression, in the order in which they came. Not thread-safe.

    Attributes:
        key: key of each action.
        time: event time of each action.
        kind: number of the kind of each action.
    """

    def __init__(self, key: Ids, time: Ids, kind: Ids) -> None:
        self.key, self.time, self.kind = key, time, kind

    @classmethod
    def none(cls) -> "WaitingActions":
        """Return no actions."""
        return cls(*(np.empty(0, np.int64) for _ in _NAMES))

    def __len__(self) -> int:
        return len(self.key)

    def plus(self, other: "WaitingActions") -> "WaitingActions":
        """Return these actions, then others."""
        if not len(other):
            return self
        return WaitingActions(
            np.concatenate([self.key, other.key]),
            np.concatenate([self.time, other.time]),
            np.concatenate([self.kind, other.kind]),
        )

    def where(self, mask: Mask) -> "WaitingActions":
        """Return the actions of a mask."""
        if mask.all():
            return self
        return WaitingActions(self.key[mask], self.time[mask], self.kind[mask])

    def to_arrow(self) -> pa.RecordBatch:
        """Return all columns."""
        return pa.record_batch({name: pa.array(getattr(self, name)) for name in _NAMES})

    @classmethod
    def from_arrow(cls, block: pa.RecordBatch) -> "WaitingActions":
        """Return actions with the columns of `to_arrow`."""
        return cls(*(block.column(name).to_numpy() for name in _NAMES))
