import pytest
import torch

from monolith.native_training.ops import PoolingType
from monolith.native_training.slots.combiners import (
    Combiner,
    FirstN,
    ReduceMean,
    ReduceSum,
    pooling_of,
)
from monolith.ops import Ragged


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


def column(*values):
    return torch.tensor(values, dtype=torch.float32)[:, None]


def test_a_sum_of_rows():
    ids = Ragged.from_lists([[1], [2, 3]])
    assert ReduceSum().combine(ids, column(1, 2, 3)).tolist() == [[1], [5]]


def test_the_first_rows():
    ids = Ragged.from_lists([[1], [2, 3], [4, 5, 6]])
    found = FirstN(2).combine(ids, column(1, 2, 3, 4, 5, 6))
    assert found.tolist() == [[[1], [0]], [[2], [3]], [[4], [5]]]


def test_a_mean_of_rows():
    ids = Ragged.from_lists([[7, 8], [9]])
    rows = torch.tensor([[4.0, 4.0], [2.0, 2.0], [1.0, 1.0]])
    assert ReduceMean().combine(ids, rows).tolist() == [[3, 3], [1, 1]]


@pytest.mark.parametrize("combiner", [ReduceSum(), ReduceMean()])
def test_no_rows_are_zeros(combiner):
    assert combiner.combine(Ragged.from_lists([[], [1]]), column(5)).tolist() == [[0], [5]]


def test_each_row_of_a_mean_gets_its_share_of_the_gradient():
    rows = torch.ones(2, 2, requires_grad=True)
    mean = ReduceMean().combine(Ragged.from_lists([[1, 2]]), rows)
    (torch.ones(1, 2) - 2 * mean).sum().backward()
    assert rows.grad.tolist() == [[-1, -1], [-1, -1]]


def test_rows_of_an_unknown_number_have_a_shape():
    ids, rows = Ragged.from_lists([[], [1]]), torch.zeros(1, 6)
    assert FirstN(2).combine(ids, rows).shape == (2, 2, 6)


def test_the_base_combines_nothing():
    with pytest.raises(NotImplementedError):
        Combiner().combine(Ragged.from_lists([[1]]), column(1))
