"""Ids by table and shard: the worked example of the reference system, and what is refused."""

import pytest
import torch

from monolith.native_training.ops import (
    FeatureConfig,
    FeatureConfigs,
    sharding_sparse_fids,
)
from monolith.native_training.ops import (
    sharding as shard_pass,
)
from monolith.native_training.ops.sharding import SHARED
from monolith.ops import Ragged
from tests.native_training.ops.layout_oracle import small_configs, small_shards


def pairs(sharded):
    return [(code >> 32, code & 0xFFFFFFFF) for code in sharded.fid_offset.tolist()]


def lists(tensors):
    return [tensor.tolist() for tensor in tensors]


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_cells_begin_where_the_ids_of_their_example_begin(version):
    sharded = small_shards(version=version)
    assert sharded.feature_offset.tolist() == [0, 2, 3, 5, 5, 8]
    assert sharded.nfl_offset.tolist() == [0, 2, 4 | SHARED, 6]
    assert sharded.batch_size == 2


@pytest.mark.parametrize("version", [1, 2, 3, 5])
def test_lists_hold_the_ids_of_a_table_and_shard(version):
    sharded = small_shards(version=version)
    assert sharded.keys == ["t1:0", "t1:1", "t2:0", "t2:1"]
    assert lists(sharded.fid_list) == [[10, 20], [11, 21], [30, 32], [31]]
    assert lists(sharded.fid_list_row_splits) == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 1]]
    assert sharded.emb_size.tolist() == [6, 6, 4, 2]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (1, [(0, 0), (1, 0), (0, 0), (0, 1), (1, 1), (3, 0), (2, 0), (2, 1)]),
        (2, [(0, 0), (2, 0), (0, 0), (1, 0), (3, 0), (5, 0), (4, 0), (4, 1)]),
        (3, [(0, 0), (1, 0), (0, 0), (0, 3), (1, 3), (3, 0), (2, 0), (2, 2)]),
        (4, [(0, 0), (1, 0), (0, 0), (0, 3), (1, 3), (3, 0), (2, 0), (2, 2)]),
        (5, [(0, 0), (1, 0), (0, 0), (0, 3), (1, 3), (3, 0), (2, 0), (2, 2)]),
    ],
)
def test_offsets_say_where_the_row_of_an_id_is(version, expected):
    assert pairs(small_shards(version=version)) == expected


def test_ids_that_are_not_unique_have_a_row_each():
    sharded = small_shards(version=3, unique=False)
    assert lists(sharded.fid_list)[0] == [10, 10, 20]
    assert lists(sharded.fid_list_row_splits)[0] == [0, 2, 3]
    assert pairs(sharded) == [(0, 0), (1, 0), (0, 3), (0, 6), (1, 3), (3, 0), (2, 0), (2, 2)]
    assert sharded.emb_size.tolist() == [9, 6, 4, 2]


def test_version_4_lies_in_the_order_of_shards():
    sharded = small_shards(version=4)
    assert sharded.keys == ["t1:0", "t2:0", "t1:1", "t2:1"]
    assert sharded.fids.tolist() == [10, 20, 30, 32, 11, 21, 31]
    assert lists(sharded.shard_fids) == [[10, 20, 30, 32], [11, 21, 31]]
    assert sharded.fid_list_table_row_length.tolist() == [2, 2, 2, 1]
    assert sharded.fid_list_shard_row_lenth.tolist() == [4, 3]
    assert sharded.fid_list_emb_row_lenth.tolist() == [6, 4, 6, 2]
    assert sharded.row_splits.tolist() == [0, 1, 2, 0, 2, 0, 1, 2, 0, 1]


def test_equal_ids_of_two_features_are_two():
    ids = Ragged.from_lists([[1, 1]])
    configs = FeatureConfigs({name: FeatureConfig("t", (1,)) for name in "ab"})
    sharded = sharding_sparse_fids({"a": ids, "b": ids}, configs, batch_size=1, ps_num=1)
    assert sharded.fids.tolist() == [1, 1]


def test_the_shard_is_the_floor_remainder():
    ids = Ragged.from_lists([[-1, -2, -3, 2, -(2**63), 2**63 - 1]])
    configs = FeatureConfigs({"a": FeatureConfig("t", (1,))})
    for ps_num in (2, 3, 4):
        sharded = sharding_sparse_fids({"a": ids}, configs, batch_size=1, ps_num=ps_num)
        shards = [code >> 32 for code in sharded.fid_offset.tolist()]
        assert shards == [key % ps_num for key in ids.values.tolist()]


def test_no_shard_counts_as_one():
    assert small_shards(ps_num=0).ps_num == 1


def test_a_missing_feature_is_a_shared_one_without_ids():
    sharded = sharding_sparse_fids({}, small_configs(), batch_size=2, ps_num=1)
    assert sharded.feature_offset.tolist() == [0, 0, 0, 0]
    assert sharded.nfl_offset.tolist() == [0 | SHARED, 1 | SHARED, 2 | SHARED, 4]


def test_the_result_does_not_depend_on_the_number_of_threads():
    generator = torch.Generator().manual_seed(0)
    names = [f"f{i}" for i in range(7)]
    configs = FeatureConfigs({name: FeatureConfig(name[:1] + name[-1:], (2,)) for name in names})
    features = {
        name: Ragged.from_lengths(
            torch.randint(-50, 50, (300,), generator=generator), torch.full((100,), 3)
        )
        for name in names
    }
    one, three = (
        sharding_sparse_fids(features, configs, batch_size=100, ps_num=3, num_threads=n)
        for n in (1, 3)
    )
    assert torch.equal(one.fids, three.fids)
    assert torch.equal(one.fid_offset, three.fid_offset)


def shard(features=None, **options):
    options = {"batch_size": 2, "ps_num": 1, **options}
    return sharding_sparse_fids(features or {}, small_configs(), **options)


TWO = Ragged.from_lists([[1], [2]])


@pytest.mark.parametrize(
    ("features", "options", "text"),
    [
        ({"x": TWO}, {}, "expected features of the configs, got 'x'; leave it out"),
        ({}, {"shared": ["x"]}, "expected shared features of the configs, got 'x'"),
        ({"a": TWO}, {"batch_size": 3}, "expected feature 'a' with 3 rows, got 2"),
        ({"a": TWO}, {"shared": ["a"]}, "expected feature 'a' with 1 row, it is shared, got 2"),
        ({}, {"batch_size": -1}, "expected batch_size of at least 0, got -1"),
        ({}, {"ps_num": -3}, "expected ps_num of at least 0, got -3"),
        ({}, {"num_threads": 0}, "expected num_threads of at least 1, got 0"),
        ({}, {"version": 6}, "expected a version of .* got version 6 and 1 shards"),
        ({}, {"ps_num": 1 << 31}, "few enough shards"),
        ({"a": Ragged(torch.ones(2, 1).long(), TWO.row_splits)}, {}, "'a' with 1 dimension, got"),
    ],
)
def test_bad_values_are_refused(features, options, text):
    with pytest.raises(ValueError, match=text):
        shard(features, **options)


def test_shared_names_may_come_from_an_iterator():
    found = small_shards(shared=iter(["c"]))
    assert found.nfl_offset.tolist() == small_shards(shared=["c"]).nfl_offset.tolist()


def test_bad_types_are_refused():
    with pytest.raises(TypeError, match="expected feature 'a' as a Ragged, got list"):
        shard({"a": [[1], [2]]})
    with pytest.raises(TypeError, match="feature 'a' of dtype int64, got int32"):
        shard({"a": Ragged(torch.ones(2).int(), TWO.row_splits)})


def test_more_ids_or_floats_than_offsets_can_count_are_refused(monkeypatch):
    monkeypatch.setattr(shard_pass, "_MAX_IDS", 2)
    with pytest.raises(ValueError, match="expected fewer than 2 ids in a batch, got 2"):
        shard({"a": TWO})
    monkeypatch.setattr(shard_pass, "_MAX_IDS", 3)
    monkeypatch.setattr(shard_pass, "_MAX_PLACE", 6)
    with pytest.raises(ValueError, match=r"fewer than 6 floats .* got 6; use more shards"):
        shard({"a": TWO})


@pytest.mark.parametrize(
    ("splits", "text"),
    [
        ([1, 1, 2], "that begin with 0, got 1"),
        ([0, 1 << 40, 2], "that never decrease, got 1099511627776 before 2 at index 1"),
        ([0, -1, 2], "that never decrease, got 0 before -1 at index 0"),
        ([0, 1, 3], "that end with 2, the number of values, got 3"),
    ],
)
def test_wrong_splits_are_refused(splits, text):
    wrong = Ragged._unchecked(torch.tensor([1, 2]), torch.tensor(splits))
    with pytest.raises(ValueError, match=rf"expected row_splits of 'b' {text}"):
        shard({"a": TWO, "b": wrong})


def test_ids_with_gaps_in_memory_are_taken():
    spread = torch.arange(8).view(4, 2)[:, 0]
    ids = Ragged._unchecked(spread[:2], torch.tensor([0, 9, 1, 9, 2, 9])[::2])
    assert shard({"a": ids}).fids.tolist() == [0, 2]


def test_splits_of_another_dtype_are_refused():
    wrong = Ragged._unchecked(torch.tensor([1, 2]), torch.tensor([0, 1, 2]).int())
    with pytest.raises(TypeError, match="row_splits of 'a' of dtype int64, got int32"):
        shard({"a": wrong})
