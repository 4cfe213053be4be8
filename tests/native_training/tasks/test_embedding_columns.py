import pytest
import torch

from monolith.native_training.slots import CollectingFactory
from monolith.native_training.slots.combiners import FirstN, ReduceMean, ReduceSum
from monolith.native_training.tasks.context import Context
from monolith.native_training.tasks.embedding_columns import (
    EmbeddingColumns,
    combiner_of,
    joined,
    named_dims,
    share_slot,
)
from monolith.ops import Ragged
from monolith.ops.fids import decode_fid_v1, decode_fid_v2, encode_fid_v1, encode_fid_v2
from monolith.table.optimizers import SGD

ONE, TWO = torch.ones(2, 3), torch.full((2, 3), 2.0)


@pytest.fixture
def factory():
    return CollectingFactory(2)


@pytest.fixture
def columns(factory):
    return EmbeddingColumns(Context(factory))


def test_a_feature_has_one_column_and_a_slot_of_its_name(columns, factory):
    first = columns.column("user", combiner=ReduceSum(), occurrence_threshold=2, expire_time=9)
    assert columns.column("user", combiner=ReduceMean()) is first
    assert columns.column(first, combiner=ReduceSum()) is first
    assert (first.feature_name, first.feature_slot.name) == ("user", "user")
    assert factory.slot_to_occurrence_threshold == {1: 2}
    assert factory.slot_to_expire_time == {1: 9}


@pytest.mark.parametrize(
    ("feature", "name", "slot"),
    [(7, "fc_slot_7", 7), ("slot_8", "slot_8", 8), ("fc_slot_9", "fc_slot_9", 9), ("x", "x", 1)],
)
def test_numbers_of_slots_are_in_their_names(columns, feature, name, slot):
    column = columns.column(feature, combiner=ReduceSum())
    assert (column.feature_name, column.feature_slot.config.slot_id) == (name, slot)


def test_a_feature_shares_the_slot_of_another(columns):
    item = columns.column("item", combiner=ReduceSum())
    history = columns.column("history", combiner=FirstN(3), shared_name="item")
    clicked = columns.column("clicked", combiner=ReduceSum(), shared_name="seen")
    assert history.feature_slot is item.feature_slot
    assert clicked.feature_slot.name == "seen"
    assert columns.column("seen", combiner=ReduceSum()).feature_slot is clicked.feature_slot


def test_a_slot_that_cannot_be_shared_is_refused(columns, factory):
    EmbeddingColumns(Context(factory)).column("item", combiner=ReduceSum())
    text = r"^history shared embedding with item, so item should create first!$"
    with pytest.raises(Exception, match=text):
        columns.column("history", combiner=ReduceSum(), shared_name="item")


def test_a_slot_that_cannot_be_made_is_refused(columns, factory):
    EmbeddingColumns(Context(factory)).column("item", combiner=ReduceSum())
    with pytest.raises(NameError, match="Duplicate names for the table"):
        columns.column("item", combiner=ReduceSum())


def test_a_name_is_one_slice_of_a_slot(columns, factory):
    columns.column("item", combiner=ReduceSum())
    columns.column("history", combiner=ReduceSum(), shared_name="item")
    for feature in ("item", "history", "item"):
        column, part = columns.column_slice(feature, "vec", 4, {"optimizer": SGD(0.5)})
        assert column.embedding_lookup(part).shape == (2, 4)
    columns.column_slice("item", "wide", 1, {})
    table = factory.tables()["item"]
    assert table.unmerged_slice_dims == (4, 1)
    assert table.slice_configs[0].segment.opt_config == SGD(0.5)


@pytest.mark.parametrize(
    ("given", "length", "expected"),
    [
        (None, 0, ReduceSum()),
        (None, 3, FirstN(3)),
        ("first_n", 3, FirstN(3)),
        ("reduce_sum", 3, ReduceSum()),
        ("reduce_mean", 0, ReduceMean()),
        (FirstN(2), 0, FirstN(2)),
    ],
)
def test_combiners_have_names(given, length, expected):
    assert combiner_of(given, length) == expected


def test_another_combiner_is_refused():
    with pytest.raises(ValueError, match="expected combiner reduce_sum, reduce_mean or first_n"):
        combiner_of("max", 0)


@pytest.mark.parametrize(
    ("features", "dim", "expected"),
    [
        (["a", 3], 4, [(["a"], 4), ([3], 4)]),
        ([("a", 2), ("b", 3)], None, [(["a"], 2), (["b"], 3)]),
        ({"a": 2}, None, [(["a"], 2)]),
        ([[1, 2], [3]], 4, [([1, 2], 4), ([3], 4)]),
    ],
)
def test_features_and_widths_are_given_in_four_forms(features, dim, expected):
    assert named_dims(features, dim) == expected


@pytest.mark.parametrize(
    ("features", "dim"),
    [("a", 4), ([], 4), (["a"], None), ([[1]], None), ([("a", 1, 2)], None), (["a", ("b", 1)], 4)],
)
def test_other_forms_are_refused(features, dim):
    with pytest.raises(ValueError, match=r"^ValueError for features$"):
        named_dims(features, dim)


@pytest.mark.parametrize(
    ("how", "shape"),
    [("concat", (2, 6)), ("stack", (2, 2, 3)), ("add_n", (2, 3)), ("addn", (2, 3))],
)
def test_parts_become_one_tensor(how, shape):
    found = joined([ONE, TWO], how)
    assert (found.shape, found.sum()) == (shape, 18)


def test_parts_stay_a_list_and_other_ways_are_refused():
    assert joined([ONE, TWO], None) == [ONE, TWO]
    with pytest.raises(ValueError, match="expected concat, stack, add_n or None, got 'mean'"):
        joined([ONE], "mean")


@pytest.mark.parametrize(
    ("variant", "encode", "decode"),
    [
        ("example", encode_fid_v2, decode_fid_v2),
        ("example_batch", encode_fid_v2, decode_fid_v2),
        ("instance", encode_fid_v1, decode_fid_v1),
    ],
)
def test_fids_get_another_slot_in_place_or_under_another_name(variant, encode, decode):
    ids = Ragged(encode(1, torch.tensor([7, 8])), torch.tensor([0, 2]))
    found = share_slot({"a": ids, "b": ids}, {"a": (True, 3), "b": (False, 4)}, variant, "too")
    assert set(found) == {"a", "b", "b_too"}
    assert [decode(found[name].values)[0].tolist() for name in ("a", "b_too")] == [[3, 3], [4, 4]]
    assert found["b"] is ids
    assert decode(found["a"].values)[1].tolist() == [7, 8]


def test_another_variant_is_refused():
    with pytest.raises(ValueError, match="expected variant_type example, example_batch, instance"):
        share_slot({}, {}, "json")
