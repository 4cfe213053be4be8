import pytest
import torch

from monolith.native_training.tables.hash_table import HashTable
from monolith.table import Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD, PolynomialDecay
from tests.suites.table_base import column, keys


def make(dim=1, rate=0.1):
    return HashTable("user", TableConfig("user", Segment(dim, SGD(rate), Zeros())))


def test_table_vector_1_of_the_reference_system():
    table = make(rate=0.01)
    assert table.lookup(keys(5)).tolist() == [[0.0]]
    assert table.assign_add(keys(-10), column(2.5), 100).lookup(keys(-10)).tolist() == [[2.5]]
    table.apply_gradients(keys(13), column(1), 0)
    assert torch.equal(table.lookup(keys(13)), column(-0.01))
    table.assign(keys(-10, 13, 100), column(1, 2, 3))
    assert table.lookup(keys(5, -10, 13, 100)).flatten().tolist() == [0, 1, 2, 3]
    entries = table.lookup_entry(keys(5, -10))
    assert entries.present.tolist() == [False, True]
    assert entries.rows.times[1] == 100


@pytest.mark.parametrize(
    ("dim", "ids", "expected"), [(1, (0, 0, 1), [0.2, 0.1]), (10, (0, 1, 0, 1, 0), [0.3, 0.2])]
)
def test_table_vector_8_of_the_reference_system(dim, ids, expected):
    table = make(dim).apply_gradients(keys(*ids), -torch.ones(len(ids), dim), 0)
    assert torch.allclose(table.lookup(keys(0, 1)), column(*expected).expand(2, dim))
    assert table.size() == 2


def test_table_vector_9_of_the_reference_system():
    table = make(rate=PolynomialDecay(0.01, 10, 0.11))
    table.apply_gradients(keys(0, 0, 1), -column(1, 1, 1), global_step=1)
    assert torch.allclose(table.lookup(keys(0, 1)), column(0.04, 0.02))
