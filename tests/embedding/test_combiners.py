import pytest

from monolith.embedding.combiners import Combiner, FirstN, ReduceMean, ReduceSum, pooling_of
from monolith.ops import PoolingType


@pytest.mark.parametrize(
    ("combiner", "pooling", "length"),
    [
        (ReduceSum(), PoolingType.SUM, 0),
        (ReduceMean(), PoolingType.MEAN, 0),
        (FirstN(2), PoolingType.FIRSTN, 2),
    ],
)
def test_pooling_of_a_combiner(combiner, pooling, length):
    assert (pooling_of(combiner), combiner.max_seq_length) == (pooling, length)


def test_a_combiner_that_layouts_do_not_have_is_refused():
    with pytest.raises(Exception, match=r"^pooling_type error!$"):
        pooling_of(Combiner())


@pytest.mark.parametrize("length", [0, -1])
def test_a_sequence_needs_a_length(length):
    with pytest.raises(ValueError, match=r"^seq_length must be greater than 0$"):
        FirstN(length)
