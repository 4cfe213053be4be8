import numpy as np
import pyarrow as pa
import pytest
import torch

from monolith.data import Columns, DenseColumn, IdColumn, Label, hash_strings
from monolith.data.batch_maker import BatchMaker
from monolith.data.convert import BadSamples, Origin, to_block
from monolith.errors import DataLossError


def block_of(columns, bad=None, **arrays):
    rows = pa.record_batch({name: pa.array(each) if isinstance(each, list) else each
                            for name, each in arrays.items()})  # fmt: skip
    return to_block(rows, columns, Origin("file", 10), bad or BadSamples())


def batch_of(columns, **arrays):
    return BatchMaker(columns).make(block_of(columns, **arrays))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint16()])
def test_integers_are_keys_as_they_are(kind):
    batch = batch_of(Columns(["user"]), user=pa.array([1, 2, 100], kind))
    assert batch.features["user"].to_lists() == [[1], [2], [100]]


def test_negative_ids_stay_negative():
    assert batch_of(Columns(["u"]), u=[-5, 3]).features["u"].to_lists() == [[-5], [3]]


def test_unsigned_ids_keep_their_bits():
    batch = batch_of(Columns(["u"]), u=pa.array([2**64 - 1], pa.uint64()))
    assert batch.features["u"].to_lists() == [[-1]]


def test_a_missing_id_is_an_empty_list():
    assert batch_of(Columns(["u"]), u=[1, None, 3]).features["u"].to_lists() == [[1], [], [3]]


@pytest.mark.parametrize("kind", [pa.null(), pa.list_(pa.null())])
def test_a_column_of_missing_ids_only_has_empty_lists(kind):
    ids = pa.array([None, [None] if pa.types.is_list(kind) else None], kind)
    assert batch_of(Columns(["u"]), u=ids).features["u"].to_lists() == [[], []]


def test_missing_lists_and_items_are_left_out():
    batch = batch_of(Columns(["u"]), u=[[1, None, 2], None, [None], []])
    assert batch.features["u"].to_lists() == [[1, 2], [], [], []]


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int64())])
def test_lists_of_every_kind_are_taken(kind):
    batch = batch_of(Columns(["u"]), u=pa.array([[1, 2], [3]], kind))
    assert batch.features["u"].to_lists() == [[1, 2], [3]]


def test_lists_of_a_fixed_size_are_taken():
    batch = batch_of(Columns(["u"]), u=pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)))
    assert batch.features["u"].to_lists() == [[1, 2], [3, 4]]


def test_missing_lists_of_a_fixed_size_are_empty():
    ids = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2))
    assert batch_of(Columns(["u"]), u=ids).features["u"].to_lists() == [[1, 2], [], [3, 4]]
    assert batch_of(Columns(["u"]), u=ids.slice(1)).features["u"].to_lists() == [[], [3, 4]]


def test_a_slice_of_a_column_is_itself():
    whole = pa.record_batch({"u": pa.array([[1], [2, 3], [4]])})
    block = to_block(whole.slice(1), Columns(["u"]), Origin("f", 0), BadSamples())
    assert BatchMaker(Columns(["u"])).make(block).features["u"].to_lists() == [[2, 3], [4]]


def test_strings_are_hashed():
    key = int(hash_strings(pa.array(["oslo"]))[0])
    assert batch_of(Columns(["c"]), c=["oslo", None]).features["c"].to_lists() == [[key], []]


def test_lists_and_dictionaries_of_strings_are_hashed():
    key = int(hash_strings(pa.array(["oslo"]))[0])
    encoded = pa.array(["oslo", "oslo"]).dictionary_encode()
    batch = batch_of(Columns(["c", "d"]), c=[["oslo"], []], d=encoded)
    assert batch.features["c"].to_lists() == [[key], []]
    assert batch.features["d"].to_lists() == [[key], [key]]


def test_only_the_first_ids_are_kept():
    columns = Columns([IdColumn("u", max_length=2)])
    assert batch_of(columns, u=[[1, 2, 3], [4], []]).features["u"].to_lists() == [[1, 2], [4], []]


def test_a_missing_item_takes_a_place_of_the_maximum_length():
    columns = Columns([IdColumn("u", max_length=2)])
    assert batch_of(columns, u=[[1, None, 3]]).features["u"].to_lists() == [[1]]


def test_a_slot_makes_fids():
    columns = Columns([IdColumn("u", slot=1)])
    assert batch_of(columns, u=[100, (7 << 48) + 5]).features["u"].values.tolist() == [
        (1 << 48) + 100,
        (1 << 48) + 5,
    ]


def test_a_feature_may_have_another_name_than_its_column():
    batch = batch_of(Columns([IdColumn("user", "uid")]), uid=[4])
    assert batch.features["user"].to_lists() == [[4]]


@pytest.mark.parametrize("values", [[1, 0, 2], [1.0, 0.0, 2.0], pa.array([1, 0, 2], pa.float64())])
def test_dense_columns_are_float32(values):
    batch = batch_of(Columns(dense=["x"]), x=values)
    assert batch.dense["x"].dtype == torch.float32
    assert batch.dense["x"].tolist() == [1, 0, 2]


def test_booleans_are_dense():
    assert batch_of(Columns(dense=["x"]), x=[True, False]).dense["x"].tolist() == [1, 0]


def test_a_width_gives_a_matrix():
    columns = Columns(dense=[DenseColumn("v", width=2)])
    assert batch_of(columns, v=[[1, 2], [3, 4]]).dense["v"].tolist() == [[1, 2], [3, 4]]


def test_a_missing_number_is_filled():
    columns = Columns(dense=[DenseColumn("x", fill=-1.0)])
    assert batch_of(columns, x=[2.0, None]).dense["x"].tolist() == [2, -1]


def test_missing_lists_and_numbers_in_lists_are_filled():
    columns = Columns(dense=[DenseColumn("v", width=2, fill=9.0)])
    assert batch_of(columns, v=[[1, None], None]).dense["v"].tolist() == [[1, 9], [9, 9]]


def test_times_are_seconds():
    stamps = pa.array([1_700_000_000_500], pa.timestamp("ms"))
    assert batch_of(Columns(time="t"), t=stamps).time.tolist() == [1_700_000_000]
    assert batch_of(Columns(time="t"), t=[5]).time.tolist() == [5]


def test_weights_are_float32():
    assert batch_of(Columns(["u"], weight="w"), u=[1], w=[2]).weight.dtype == torch.float32


def test_a_batch_does_not_share_memory_with_the_source():
    rows = pa.record_batch({"x": pa.array(np.ones(3, np.float32))})
    columns = Columns(dense=["x"])
    block = to_block(rows, columns, Origin("f", 0), BadSamples())
    BatchMaker(columns).make(block).dense["x"].zero_()
    assert rows["x"].to_pylist() == [1, 1, 1]


BAD = [
    (Columns(dense=["x"]), {"x": [1.0, None]}, "expected a number in column 'x', got none"),
    (
        Columns(dense=[DenseColumn("v", width=2)]),
        {"v": [[1, 2], [3]]},
        "expected 2 numbers in column 'v', got 1",
    ),
    (
        Columns(dense=[DenseColumn("v", width=2)]),
        {"v": [[1, 2], None]},
        "expected 2 numbers in column 'v', got none",
    ),
    (
        Columns(dense=[DenseColumn("v", width=2)]),
        {"v": [[1, 2], [3, None]]},
        "expected 2 numbers in column 'v', got missing ones",
    ),
    (
        Columns(labels=[Label("y", low=0, high=1)]),
        {"y": [1, 2]},
        "expected a label from 0 to 1 in column 'y', got 2",
    ),
    (
        Columns(labels=[Label("y", low=0)]),
        {"y": [1.0, -0.5]},
        "expected a label from 0 to inf in column 'y', got -0.5",
    ),
    (
        Columns(labels=["y"]),
        {"y": pa.array(np.array([1, np.nan]))},
        "expected finite numbers of float32 in column 'y', got nan",
    ),
    (
        Columns(dense=["x"]),
        {"x": [1.0, -1e300]},
        "expected finite numbers of float32 in column 'x', got -1e+300",
    ),
    (
        Columns(weight="x"),
        {"x": pa.array([1, np.inf], pa.float32())},
        "expected finite numbers of float32 in column 'x', got inf",
    ),
    (
        Columns(dense=[DenseColumn("v", width=2, fill=0)]),
        {"v": [None, [1.0, float("nan")]]},
        "expected finite numbers of float32 in column 'v', got nan",
    ),
    (
        Columns(labels=[Label("y", width=2, high=1)]),
        {"y": [[0, 1], [0, 3]]},
        "expected a label from -inf to 1 in column 'y', got 0, 3",
    ),
    (Columns(time="t"), {"t": [5, None]}, "expected a time in column 't', got none"),
]


@pytest.mark.parametrize(("columns", "arrays", "text"), BAD)
def test_a_bad_sample_is_an_error_that_names_it(columns, arrays, text):
    with pytest.raises(DataLossError) as caught:
        block_of(columns, **arrays)
    assert str(caught.value).startswith(f"[data] 'file', sample 11: {text}; fix the data")


@pytest.mark.parametrize(("columns", "arrays", "text"), BAD)
def test_a_bad_sample_can_be_left_out_and_is_counted(columns, arrays, text):
    bad = BadSamples(skips=True)
    assert block_of(columns, bad, **arrays).num_rows == 1
    assert bad.counts == {text.split(", got")[0]: 1}


def test_a_missing_number_may_read_as_nan():
    block = block_of(Columns(dense=[DenseColumn("x", fill=float("nan"))]), x=[1.0, None])
    np.testing.assert_array_equal(block["x"].to_numpy(), [1.0, np.nan])


def test_a_sample_that_breaks_two_rules_is_counted_once():
    bad = BadSamples(skips=True)
    block_of(Columns(dense=["x", "y"]), bad, x=[1.0, None], y=[None, None])
    assert sum(bad.counts.values()) == 2


@pytest.mark.parametrize(
    ("columns", "array", "expected"),
    [
        (Columns(["c"]), [1.5], "integers or strings, or lists of them, got type double"),
        (Columns(dense=["c"]), ["x"], "numbers, got type string"),
        (Columns(dense=["c"]), [[1.0]], "numbers, got type list"),
        (Columns(dense=[DenseColumn("c", width=2)]), [1.0], "lists of 2 numbers, got type double"),
        (Columns(time="c"), [1.5], "integers or timestamps, got type double"),
    ],
)
def test_wrong_types_are_refused(columns, array, expected):
    with pytest.raises(TypeError) as caught:
        block_of(columns, c=array)
    assert str(caught.value).startswith(f"[data] 'file' expected column 'c' of {expected}")


def test_the_place_of_a_sample_may_be_a_block():
    assert Origin("f", 0, 99).at(3) == "[data] 'f', sample 3 of the block at byte 99:"
