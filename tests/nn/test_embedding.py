import pytest
import torch

from monolith.embedding import SGD, Zeros
from monolith.nn import Embedding
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
