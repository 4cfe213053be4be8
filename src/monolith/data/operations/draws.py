"""Random numbers of operations, which depend on seed, epoch and number of the sample."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from monolith.data.cursor import Cursor, Stage, StageCursor, State, source_state
from monolith.data.order import uniform
from monolith.data.stages import call


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers of the samples of a block, independent of the division into blocks.

    Args:
        epoch: number of the pass; a large number in a share of a worker, whose draws are its own.
        first: number of the block's first sample in the epoch, counted at the operation.

    Example:
        >>> bool((Draws(0, 5).uniform(2, 7) == Draws(0, 4).uniform(3, 7)[1:]).all())
        True
    """

    epoch: int
    first: int

    def uniform(self, count: int, seed: int, stream: int = 0) -> npt.NDArray[np.float64]:
        """Return a number in [0, 1) for each sample; streams are independent."""
        return uniform(count, seed, self.epoch, stream, first=self.first)

    def uniforms(
        self, count: int, width: int, seed: int, stream: int = 0
    ) -> npt.NDArray[np.float64]:
        """Return `width` numbers in [0, 1) for each sample, (count, width)."""
        numbers = uniform(count * width, seed, self.epoch, stream, first=self.first * width)
        return numbers.reshape(count, width)

    def after(self, num_samples: int) -> "Draws":
        """Return the random numbers of the samples after the next `num_samples`."""
        return Draws(self.epoch, self.first + num_samples)


@dataclass(frozen=True)
class Sampling:
    """Applies a function to each block and its random numbers.

    Args:
        source: previous stage.
        function: function that returns a block, whose number of samples may differ.
        name: name of the function, for descriptions.
        reads: columns that the function reads; None if it may read every column.
        counts: numbers of samples before and after, over all passes in this process.
    """

    source: Stage
    function: Callable[[pa.RecordBatch, Draws], pa.RecordBatch]
    name: str
    reads: frozenset[str] | None = None
    counts: dict[str, int] = field(default_factory=lambda: {"in": 0, "out": 0})

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [*self.source.describe(), f"sample {self.name}"]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        source = self.source.open(epoch, source_state(state))
        return _SamplingCursor(self, source, epoch, 0 if state is None else state["first"])


class _SamplingCursor(StageCursor):
    def __init__(self, stage: Sampling, source: Cursor, epoch: int, first: int) -> None:
        super().__init__(source)
        self._stage, self._epoch, self._first = stage, epoch, first

    def next(self) -> pa.RecordBatch | None:
        while (block := self._source.next()) is not None:
            draws = Draws(self._epoch, self._first)
            out = call(self._stage, self._stage.function, block, draws)
            self._first += block.num_rows
            self._stage.counts["in"] += block.num_rows
            self._stage.counts["out"] += out.num_rows
            if out.num_rows:
                return out
        return None

    def state(self) -> State:
        return {"source": self._source.state(), "first": self._first}
