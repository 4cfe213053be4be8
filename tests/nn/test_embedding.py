import pytest
import torch

from monolith.nn import Embedding
from monolith.ops import Ragged
from monolith.table import Zeros
from monolith.table.optimizers import SGD
from tests.nn.cases import rows
from tests.suites.table_base import assert_same_bits


@pytest.fixture
def embedding():
    return Embedding(2, optimizer=SGD(1.0), name="user")


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (1, 2, 3)])
def test_ids_of_any_shape_get_a_row_each(embedding, shape):
    ids = torch.randint(-(1 << 63), (1 << 63) - 1, shape)
    found = embedding(ids)
    assert found.shape == (*shape, 2)
    assert_same_bits(found.reshape(-1, 2), embedding.table.lookup(ids.reshape(-1)))


def test_a_padding_id_reads_zeros_and_is_not_trained():
    embedding = Embedding(1, optimizer=SGD(1.0), initializer=Zeros(), padding_idx=7)
    found = embedding(torch.tensor([7, 8]))
    found.sum().backward()
    embedding.step()
    assert found.tolist() == [[0.0], [0.0]]
    assert rows(embedding) == {8: [-1.0]}


def test_float_ids_are_refused(embedding):
    with pytest.raises(TypeError, match=r"\[Embedding\] expected input of dtype int64 or int32"):
        embedding(torch.tensor([1.0]))


def test_a_ragged_gives_a_ragged_of_rows(embedding):
    ids = Ragged.from_lists([[7, 8], [], [7]])
    found = embedding(ids)
    assert found.row_splits.tolist() == [0, 2, 2, 3]
    assert_same_bits(found.values, embedding(ids.values))
    found.values.sum().backward()
    assert embedding.step().num_applied == 2


def test_a_nested_tensor_is_refused_with_the_way_out(embedding):
    with pytest.raises(TypeError, match=r"\[Embedding\] expected input .* with Ragged.from_nested"):
        embedding(Ragged.from_lists([[7, 8], [9]]).to_nested())
