"""How the rows of one feature in one example are combined, in the words of the reference system."""

from dataclasses import dataclass

from monolith.ops import PoolingType

__all__ = ["Combiner", "FirstN", "ReduceMean", "ReduceSum", "pooling_of"]


class Combiner:
    """One of the classes below; `max_seq_length` is 0 unless rows are kept apart."""

    max_seq_length: int = 0


@dataclass(frozen=True)
class ReduceSum(Combiner):
    """The sum of the rows."""


@dataclass(frozen=True)
class ReduceMean(Combiner):
    """The mean of the rows; zeros where there are none."""


@dataclass(frozen=True)
class FirstN(Combiner):
    """The first rows, padded with zeros.

    Args:
        seq_length: how many.
    """

    seq_length: int

    def __post_init__(self) -> None:
        if self.seq_length <= 0:
            raise ValueError("seq_length must be greater than 0")

    @property
    def max_seq_length(self) -> int:  # type: ignore[override]
        """How many rows are kept."""
        return self.seq_length


def pooling_of(combiner: Combiner) -> PoolingType:
    """The pooling of a layout; refuses combiners that a layout does not have."""
    kinds = {ReduceSum: PoolingType.SUM, ReduceMean: PoolingType.MEAN, FirstN: PoolingType.FIRSTN}
    for kind, pooling in kinds.items():
        if isinstance(combiner, kind):
            return pooling
    raise Exception("pooling_type error!")
