"""Batches made by the core, beside the same in Python, column by column."""

import gc
import os
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from monolith.data import Columns, DenseColumn, arrow_table, batch_maker
from monolith.data.batch_maker import BatchMaker
from monolith.ops import Ragged
from monolith.ops.compiled import load_native

COLUMNS = Columns(
    ["user", "items", "tags"],
    ["price", DenseColumn("vector", width=3)],
    ["click"],
    weight="weight",
    time="time",
)


def expected_ids(array):
    return (
        array.to_pylist() if isinstance(array, pa.ListArray) else [[i] for i in array.to_pylist()]
    )


def random_block(rng, num_rows):
    """Id columns with and without lists, floats, lists of 3; sliced out of a longer one."""
    before, after = (int(n) for n in rng.integers(0, 9, 2))
    n = num_rows + before + after

    def ids():
        flat = rng.integers(-(2**62), 2**62, n)
        if rng.random() < 0.5:
            return pa.array(flat)
        lengths = rng.integers(0, rng.integers(1, 5), n)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(rng.integers(-9, 9, int(lengths.sum())))
        )

    def floats(count):
        return pa.array(rng.random(count, np.float32))

    whole = {name: ids() for name in ("tags", "user", "items")}
    whole |= {name: floats(n) for name in ("click", "price", "weight")}
    whole["vector"] = pa.FixedSizeListArray.from_arrays(floats(3 * n), 3)
    whole["time"] = pa.array(rng.integers(0, 2**40, n))
    return pa.record_batch(whole).slice(before, num_rows)


@pytest.mark.parametrize("seed", range(40))
def test_random_blocks_give_what_python_gives(seed):
    rng = np.random.default_rng(seed)
    maker = BatchMaker(COLUMNS)
    for num_rows in (0, 1, int(rng.integers(2, 60))):
        block = random_block(rng, num_rows)
        batch = maker.make(block)
        assert len(batch) == num_rows
        for name, ids in batch.features.items():
            assert ids.to_lists() == expected_ids(block[name])
            Ragged(ids.values, ids.row_splits)  # checks them
        found = {**batch.dense, **batch.labels, "weight": batch.weight, "time": batch.time}
        for name in ("price", "vector", "click", "weight", "time"):
            assert found[name].tolist() == block[name].to_pylist()
        assert batch.dense["vector"].shape == (num_rows, 3)


def ids_of(array, **more):
    return BatchMaker(Columns(["u"])).make(pa.record_batch({"u": array, **more})).features["u"]


def test_a_slice_of_a_slice_is_taken():
    lists = pa.array([[9], [1, 2], [], [3], [9]]).slice(1, 4).slice(0, 3)
    assert ids_of(lists).to_lists() == [[1, 2], [], [3]]
    assert ids_of(pa.array([9, 1, 2, 9]).slice(1, 3).slice(0, 2)).to_lists() == [[1], [2]]


def test_values_of_lists_may_be_a_slice():
    values = pa.array([9, 9, 1, 2, 3]).slice(2)
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), values)
    assert ids_of(lists.slice(1)).to_lists() == [[3]]


def test_missing_values_outside_of_a_slice_do_not_count():
    assert ids_of(pa.array([None, 1, 2]).slice(1)).to_lists() == [[1], [2]]
    lists = pa.array([[None, 4], [1, 2]]).slice(1)
    assert ids_of(lists).to_lists() == [[1, 2]]
    vectors = pa.array([[None], [2.0]], pa.list_(pa.float32(), 1)).slice(1)
    maker = BatchMaker(Columns(dense=[DenseColumn("v", width=1)]))
    assert maker.make(pa.record_batch({"v": vectors})).dense["v"].tolist() == [[2.0]]


def test_features_of_one_id_share_their_row_splits():
    block = pa.record_batch({"u": pa.array([1, 2]), "v": pa.array([3, 4])})
    features = BatchMaker(Columns(["u", "v"])).make(block).features
    assert features.row_splits.stride() == (0, 1)
    assert features["v"].to_lists() == [[3], [4]]


def test_batches_of_a_source_share_their_names():
    first, second = arrow_table(pa.table({"user": [1, 2]})).batch(1)
    assert first.features.names is second.features.names
    assert first.features["user"].to_lists() == [[1]]


def test_a_batch_may_have_no_ids():
    batch = BatchMaker(Columns(dense=["x"])).make(pa.record_batch({"x": pa.array([1.0], "f4")}))
    assert (dict(batch.features), len(batch)) == ({}, 1)


def test_no_rows_make_an_empty_batch():
    block = pa.record_batch({"u": pa.array([], pa.list_(pa.int64())), "x": pa.array([], "f4")})
    batch = BatchMaker(Columns(["u"], ["x"])).make(block)
    assert (len(batch), batch.features["u"].to_lists(), batch.dense["x"].shape) == (0, [], (0,))


def test_columns_that_nobody_wants_are_left_alone():
    assert ids_of(pa.array([1]), other=pa.array(["text"])).to_lists() == [[1]]


def numbers(count):
    return pa.array(range(count))


def make_of(parts, columns=COLUMNS, **options):
    maker = BatchMaker(columns, **options)
    return maker.batch(maker.copy(parts))


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_parts_of_blocks_are_put_together(seed, is_ahead):
    rng = np.random.default_rng(seed)
    blocks = [random_block(rng, int(n)) for n in rng.integers(1, 30, 3)]
    firsts = [int(rng.integers(0, len(block))) for block in blocks]
    parts = [
        (b, at, int(rng.integers(0, len(b) - at + 1))) for b, at in zip(blocks, firsts, strict=True)
    ]
    batch = make_of(parts, is_ahead=is_ahead)
    for name in ("user", "items", "tags"):
        rows = [row for b, at, n in parts for row in expected_ids(b[name])[at : at + n]]
        assert batch.features[name].to_lists() == rows
    for name, found in {**batch.dense, **batch.labels, "time": batch.time}.items():
        assert found.tolist() == [x for b, at, n in parts for x in b[name].to_pylist()[at : at + n]]


def test_lists_of_different_sizes_are_not_put_together():
    columns = Columns(dense=[DenseColumn("v", width=1)])
    parts = [
        (pa.record_batch({"v": pa.array([[1.0] * width], pa.list_(pa.float32(), width))}), 0, 1)
        for width in (1, 2)
    ]
    text = r"\[data\] expected float column 0 of all blocks with width 1, got 2"
    for is_ahead in (False, True):
        with pytest.raises(ValueError, match=text):
            make_of(parts, columns, is_ahead=is_ahead)


def test_a_block_is_opened_once_for_many_batches(monkeypatch):
    opened, real = [], BatchMaker._open

    def note(maker, block):
        opened.append(block)
        return real(maker, block)

    monkeypatch.setattr(BatchMaker, "_open", note)
    source = arrow_table(pa.table({"user": list(range(100))})).batch(3).prefetch(2)
    assert len(list(source)) == 34
    assert len(opened) == 1


def tasks():
    return set(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("depth", [0, 2])
def test_with_prefetch_a_thread_of_the_core_copies(monkeypatch, depth):
    native, copiers = load_native(), []

    def copy(rows, ahead):
        copiers.append(type(ahead))
        return native.BlockCopy(rows, ahead)

    core = SimpleNamespace(**{**vars(native), "BlockCopy": copy})
    monkeypatch.setattr(batch_maker, "load_native", lambda: core)
    source = arrow_table(pa.table({"user": [1, 2, 3]})).batch(1)
    batches = list(source.prefetch(depth) if depth else source)
    assert [batch.features["user"].values.tolist() for batch in batches] == [[1], [2], [3]]
    assert copiers == [native.CopyAhead if depth else type(None)] * 3


def test_the_thread_of_the_core_ends_with_the_maker():
    before = tasks()
    maker = BatchMaker(Columns(["u"]), is_ahead=True)
    (ours,) = tasks() - before
    copies = [maker.copy([(pa.record_batch({"u": numbers(1000)}), 0, 1000)]) for _ in range(20)]
    del copies, maker  # in the middle of them
    assert any(ours not in tasks() for _ in range(100_000))  # the kernel may need a moment


def test_what_is_copied_ahead_outlives_the_maker():
    maker = BatchMaker(Columns(["u"]), is_ahead=True)
    copied = maker.copy([(pa.record_batch({"u": numbers(5)}), 1, 3)])
    batch = maker.batch(copied)
    del maker, copied
    gc.collect()
    assert batch.features["u"].to_lists() == [[1], [2], [3]]


def test_the_batch_outlives_the_block():
    block = pa.record_batch({"u": pa.array([5, 6])})
    batch = BatchMaker(Columns(["u"])).make(block)
    del block
    gc.collect()
    assert batch.features["u"].to_lists() == [[5], [6]]


def test_a_block_is_released_after_success_and_after_an_error():
    before = pa.total_allocated_bytes()
    block = pa.record_batch({"u": numbers(100_000), "w": pa.array(["a"] * 100_000)})
    BatchMaker(Columns(["u"])).make(block)
    with pytest.raises(ValueError, match="'w'"):
        BatchMaker(Columns(["u"], ["w"])).make(block)
    del block
    gc.collect()
    assert pa.total_allocated_bytes() == before


NULLS = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), pa.array([1, None]))
BACK = pa.ListArray.from_arrays(pa.array([0, 2, 1, 3], pa.int32()), pa.array([1, 2, 3]))
BAD = [
    ("ids", pa.array(["a"]), "of int64, or lists of it, got string; cast it"),
    ("ids", pa.array([1], pa.duration("s")), "got format 'tDs'; cast it"),
    ("ids", pa.array([1, None, None]), "without missing values, got 2 missing ones"),
    ("ids", pa.array([[1], None]), "without missing values, got 1 missing ones"),
    ("ids", NULLS, "without missing values, got 1 missing ones"),
    ("ids", BACK, "with lists that follow each other in 3 values, got others"),
    ("ids", pa.array([[1.0]]), "of int64, or lists of it, got list of double; cast it"),
    ("dense", pa.array(["a"]), "of float, or lists of a fixed size of it, got string; cast it"),
    (
        "dense",
        pa.array([["a"]], pa.list_(pa.string(), 1)),
        "got format '\\+w:1' of string; cast it",
    ),
    ("dense", pa.array([[1.0]], pa.list_(pa.float32())), "got list of float; cast it"),
    ("dense", pa.array([1.0, None], pa.float32()), "without missing values, got 1"),
    ("dense", pa.array([[None]], pa.list_(pa.float32(), 1)), "without missing values, got 1"),
    ("time", pa.array([[1]]), "of int64, got list of int64"),
]


LARGE = pa.array([2**64 - 2], pa.uint64())  # the same bits, as of a fid


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([3], pa.int32()), [[3]]),
        (LARGE, [[-2]]),
        (pa.array([[3, 4]], pa.large_list(pa.int64())), [[3, 4]]),
        (pa.array([[3], []], pa.list_(pa.uint8())), [[3], []]),
    ],
)
def test_ids_of_another_type_are_cast(array, expected):
    batch = BatchMaker(Columns(["x"])).make(pa.record_batch({"x": array}))
    assert batch.features["x"].values.dtype == torch.int64
    assert batch.features["x"].to_lists() == expected


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([0.5]), [0.5]),
        (pa.array([True, False]), [1.0, 0.0]),
        (pa.array([7], pa.int8()), [7.0]),
        (pa.array([[0.5, 1.5]], pa.list_(pa.float64(), 2)), [[0.5, 1.5]]),
    ],
)
def test_numbers_of_another_type_are_cast(array, expected):
    dense = BatchMaker(Columns([], ["x"])).make(pa.record_batch({"x": array})).dense["x"]
    assert (dense.dtype, dense.tolist()) == (torch.float32, expected)


@pytest.mark.parametrize(("part", "array", "text"), BAD)
def test_what_a_block_must_not_have_is_refused(part, array, text):
    columns = Columns(**{part: "x" if part == "time" else ["x"]})
    with pytest.raises(ValueError, match=rf"^\[data\] expected column 'x' of a block .*{text}"):
        BatchMaker(columns).make(pa.record_batch({"x": array}))


def test_a_column_that_a_function_has_lost_is_named():
    source = arrow_table(pa.table({"user": [1], "item": [2]})).map(lambda b: b.select(["user"]))
    with pytest.raises(
        ValueError, match=r"^\[data\] expected a column 'item' in a block, got none"
    ):
        next(iter(source.batch(1)))


def test_only_capsules_of_arrow_are_opened():
    native = load_native()
    with pytest.raises(ValueError, match="PyCapsule_GetPointer"):
        native.ArrowBlock(native.BlockNames(["u"], [], []), torch.ones(1), torch.ones(1))
