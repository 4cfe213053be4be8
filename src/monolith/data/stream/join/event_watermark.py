"""`Watermark`: up to which event time the events of all inputs are expected to be there."""

import numpy as np

from monolith.data.operations.sample_rows import Ids

UNKNOWN = -(1 << 62)  # before every event


class Watermark:
    """The newest event time minus the lateness, of the input where this is least.

    Inputs that are idle or at their end do not count; if no input counts, the watermark stays. It
    never goes back: the events of an input that was idle may be late. Not thread-safe.

    Args:
        num_inputs: number of inputs.
        lateness: how much later than the newest event of its input an event may come.
    """

    def __init__(self, num_inputs: int, lateness: int) -> None:
        self._lateness = lateness
        self.newest = [UNKNOWN] * num_inputs
        self.counts = [True] * num_inputs  # whether an input is neither idle nor at its end
        self.value = UNKNOWN

    def advance(self, source: int, times: Ids) -> Ids:
        """Take events of an input, at least one; return the watermark at each of them.

        The watermark at an event includes the event itself.
        """
        newest = np.maximum(np.maximum.accumulate(times), self.newest[source])
        self.newest[source], self.counts[source] = int(newest[-1]), True
        others = self._least(without=source)
        least = newest if others is None else np.minimum(newest, others)
        marks: Ids = np.maximum(least - self._lateness, self.value)
        self.value = int(marks[-1])
        return marks

    def leave_out(self, source: int) -> int:
        """Do not wait for an input until its next event; return the watermark."""
        self.counts[source] = False
        least = self._least()
        if least is not None:
            self.value = max(self.value, least - self._lateness)
        return self.value

    def _least(self, without: int | None = None) -> int | None:
        pairs = enumerate(zip(self.newest, self.counts, strict=True))
        times = [time for at, (time, counts) in pairs if counts and at != without]
        return min(times, default=None)
