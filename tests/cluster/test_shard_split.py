import pytest
import torch

from monolith.cluster.shard_split import Split, by_hash, concatenated
from monolith.table import Rows
from monolith.table.initializers import key_hash
from monolith.table.routing import FloorModRouting, PartitionRouting
from tests.suites.table_base import assert_equal_rows, column, keys, random_keys


def test_equal_keys_stay_in_the_order_of_the_call():
    numbers = keys(5, 8, 5, 3, 5)
    split = Split(FloorModRouting(2), numbers)
    assert [part.tolist() for part in split.parts(numbers)] == [[8], [5, 5, 3, 5]]
    parts = split.parts(column(0, 1, 2, 3, 4))
    assert [part.flatten().tolist() for part in parts] == [[1], [0, 2, 3, 4]]


@pytest.mark.parametrize("num_shards", [1, 2, 300, 4096])
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_merging_undoes_the_split(num_shards, n):
    numbers = random_keys(n)
    split = Split(PartitionRouting(num_shards), numbers)
    assert len(split.parts(numbers)) == num_shards
    assert torch.equal(split.merged(split.parts(numbers)), numbers)


def test_rows_are_split_and_merged_by_column():
    rows = Rows(keys(1, 2, 3), keys(7, 8, 9), {"weight/0": column(1, 2, 3)})
    split = Split(FloorModRouting(2), rows.keys)
    even, odd = split.rows(rows)
    assert_equal_rows(even, Rows(keys(2), keys(8), {"weight/0": column(2)}))
    assert_equal_rows(split.merged_rows([even, odd]), rows)
    assert_equal_rows(concatenated([rows]), rows)


def test_partitions_go_to_their_owners():
    split = Split.of_partitions(PartitionRouting(2), keys(4095, 0, 2048, 1))
    assert [part.tolist() for part in split.parts(keys(1, 2, 3, 4))] == [[2, 4], [1, 3]]


def test_values_that_take_gradients_leave_no_graph():
    split = Split(FloorModRouting(2), keys(1, 2))
    assert not any(part.requires_grad for part in split.parts(column(1, 2).requires_grad_()))


def test_order_of_the_hash():
    numbers = random_keys(50)
    assert numbers[by_hash(numbers)].tolist() == sorted(numbers.tolist(), key=key_hash)
