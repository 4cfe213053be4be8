import pytest
import torch

from monolith.table.initializers import key_hash
from monolith.table.routing import FloorModRouting, PartitionRouting, routing_of
from tests.suites.table_base import EDGE_KEYS, keys, random_keys

EVERY_COUNT = pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 1000, 4096])


@EVERY_COUNT
def test_the_shards_own_ranges_that_cover_the_partitions(num_shards):
    routing = PartitionRouting(num_shards)
    owned = [routing.partitions_of(shard) for shard in range(num_shards)]
    assert [partition for part in owned for partition in part] == list(range(4096))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1


@EVERY_COUNT
def test_a_key_is_on_the_shard_that_owns_its_partition(num_shards):
    routing, numbers = PartitionRouting(num_shards), random_keys(200)
    shards = routing.shard_of(numbers)
    assert shards.dtype == torch.int64
    for key, shard in zip(numbers.tolist(), shards.tolist(), strict=True):
        assert key_hash(key) >> 52 in routing.partitions_of(shard)
    partitions = torch.tensor([key_hash(key) >> 52 for key in numbers.tolist()])
    assert routing.owner_of(partitions).tolist() == shards.tolist()


@EVERY_COUNT
def test_floor_remainder_is_never_negative(num_shards):
    shards = FloorModRouting(num_shards).shard_of(keys(*EDGE_KEYS))
    assert shards.dtype == torch.int64
    assert shards.tolist() == [key % num_shards for key in EDGE_KEYS]


def test_floor_remainder_leaves_every_partition_to_every_shard():
    assert FloorModRouting(3).partitions_of(2) == range(4096)


@pytest.mark.parametrize("kind", [PartitionRouting, FloorModRouting])
@pytest.mark.parametrize("num_shards", [0, -1, 4097])
def test_numbers_of_shards_outside_their_range(kind, num_shards):
    text = rf"\[{kind.__name__}\] expected num_shards in \[1, 4096\], got {num_shards}"
    with pytest.raises(ValueError, match=text):
        kind(num_shards)


def test_a_number_of_shards_that_is_no_integer():
    text = r"\[PartitionRouting\] expected num_shards as an integer, got 1.5"
    with pytest.raises(TypeError, match=text):
        PartitionRouting(1.5)


def test_partition_strategies_are_routings():
    assert type(routing_of("[here]", "div", 3)) is PartitionRouting
    assert type(routing_of("[here]", "mod", 3)) is FloorModRouting
    with pytest.raises(
        ValueError, match=r"\[here\] expected partition_strategy in div, mod, got 'x'"
    ):
        routing_of("[here]", "x", 3)
