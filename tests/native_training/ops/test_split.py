import pytest
import torch

from monolith.native_training.ops import (
    fused_reorder_by_indices,
    gen_seq_mask,
    id_groups,
    normalize_merged_split,
    ragged_split_by_indices,
    reorder_by_indices,
    split_by_indices,
)
from monolith.ops import Ragged


def tensor(*values):
    return torch.tensor(values)


def lists(parts):
    return [part.tolist() for part in parts]


def test_rows_are_split_in_order():
    ids = tensor(0, 1, 2, 2, 3)
    assert lists(split_by_indices(ids % 3, ids, 3)) == [[0, 3], [1], [2, 2]]


def test_gradients_of_a_split_go_back_to_their_rows():
    rows = torch.arange(10.0).view(5, 2).requires_grad_()
    parts = split_by_indices(tensor(0, 1, 2, 2, 0), rows, 3)
    sum((i + 1) * part.sum() for i, part in enumerate(parts)).backward()
    assert rows.grad[:, 0].tolist() == [1, 2, 3, 3, 1]


def test_nothing_is_split_into_nothing():
    rows = torch.empty(0, requires_grad=True)
    parts = split_by_indices(torch.empty(0, dtype=torch.int64), rows, 2)
    assert lists(parts) == [[], []]
    sum(part.sum() for part in parts).backward()
    assert rows.grad.tolist() == []


def test_ragged_values_are_split_with_their_rows():
    ragged = Ragged.from_lists([[], [], [4, 3, 2], [1], [], []])
    parts, positions = ragged_split_by_indices(tensor(0, 1, 0, 1), ragged, 2)
    assert [part.to_lists() for part in parts] == [
        [[], [], [4, 2], [], [], []],
        [[], [], [3], [1], [], []],
    ]
    assert [part.to_lists() for part in positions] == [
        [[], [], [0, 2], [], [], []],
        [[], [], [1], [3], [], []],
    ]


def test_a_reordered_shard_begins_with_the_last_id():
    ids = tensor(0, 1, 2, 2, 3, 5)
    values, sizes = reorder_by_indices(ids, (ids % 3).int(), 3)
    assert (values.tolist(), sizes.tolist()) == ([3, 0, 1, 5, 2], [2, 1, 2])


def test_reordered_float_rows_are_equal_by_their_first_column():
    rows = torch.tensor([[0.0, 1], [1, 2], [-0.0, 3], [2, 4]])
    values, sizes = reorder_by_indices(rows, tensor(0, 1, 0, 0), 2)
    assert (values.tolist(), sizes.tolist()) == ([[2, 4], [0, 1], [1, 2]], [2, 1])


@pytest.mark.parametrize(
    ("inputs", "shards", "dims", "output", "sizes", "slots", "offsets"),
    [
        (
            [[0, 1, 0], [3, 2, 3], [5, 6, 7]],
            2,
            [1, 2, 3],
            [0, 2, 6, 1, 3, 5, 7],
            [3, 4],
            [1, 1, 1, 1, 1, 2],
            [0, 6, 0, 7, 1, 7, 9, 3, 12],
        ),
        (
            [[2, 3, 1, 2, 7, 2], [5, 8, 4, 4, 5, 11, 6]],
            3,
            [3, 2],
            [3, 6, 1, 7, 4, 2, 5, 8, 11],
            [2, 3, 4],
            [1, 1, 2, 1, 1, 3],
            [13, 0, 5, 13, 8, 13, 16, 18, 11, 11, 16, 20, 3],
        ),
        ([[]], 2, [1], [], [0, 0], [0, 0], []),
        ([[-1, -2]], 3, [1], [-2, -1], [0, 1, 1], [0, 1, 1], [1, 0]),
        ([], 2, [], [], [0, 0], [], []),
    ],
)
def test_ids_of_several_inputs_are_sorted_by_shard(
    inputs, shards, dims, output, sizes, slots, offsets
):
    tensors = [torch.tensor(ids, dtype=torch.int64) for ids in inputs]
    found = fused_reorder_by_indices(tensors, shards, dims)
    assert found.output.tolist() == output
    assert found.shard_sizes.tolist() == sizes
    assert found.sharded_slot_sizes.tolist() == slots
    assert found.input_lengths.tolist() == [len(ids) for ids in inputs]
    assert found.fused_embedding_offsets.tolist() == offsets


def test_merged_splits_become_one():
    found = normalize_merged_split(tensor(0, 2, 5, 5, 9, 0, 0, 3, 4), tensor(5, 4))
    assert found.tolist() == [0, 2, 5, 5, 9, 9, 12, 13]


def test_merged_splits_begin_where_all_before_them_end():
    found = normalize_merged_split(tensor(0, 2, 0, 3, 0, 4), tensor(2, 2, 2))
    assert found.tolist() == [0, 2, 2 + 3, 2 + 3 + 4]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_mask_marks_the_positions_that_have_a_value(dtype):
    mask = gen_seq_mask(tensor(0, 5, 7, 9, 13).to(dtype), 6)
    assert mask.dtype == dtype
    assert mask.tolist() == [
        [1, 1, 1, 1, 1, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
    ]


ONE = torch.ones(1, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: split_by_indices(ONE, ONE, 1), r"expected indices in \[0, 1\), got 1 to 1"),
        (lambda: split_by_indices(-ONE, ONE, 1), r"expected indices in \[0, 1\), got -1 to -1"),
        (lambda: split_by_indices(ONE, ONE, 0), "expected at least 1 split, got 0"),
        (
            lambda: split_by_indices(ONE, tensor(1, 2), 2),
            "tensor of length 1, that of indices, got 2",
        ),
        (lambda: split_by_indices(ONE, torch.tensor(1), 2), "tensor of length 1"),
        (lambda: split_by_indices(ONE[None], ONE, 2), "indices with 1 dimension, got shape"),
        (
            lambda: ragged_split_by_indices(ONE, Ragged.from_lists([[1, 2]]), 2),
            "indices of length 2, that of values, got 1",
        ),
        (lambda: reorder_by_indices(ONE[None], ONE, 2), "int64 values with 1 dimension or float32"),
        (lambda: reorder_by_indices(ONE, tensor(0, 1), 2), "shard_ids of length 1"),
        (lambda: fused_reorder_by_indices([ONE], 2, []), "dim_sizes of length 1"),
        (lambda: fused_reorder_by_indices([ONE], 0, [1]), "expected at least 1 shard, got 0"),
        (
            lambda: fused_reorder_by_indices([ONE, ONE], 2, [1, -3]),
            r"dim_sizes of at least 1, got \[1, -3\]",
        ),
        (lambda: normalize_merged_split(ONE, tensor(0, 1)), "sizes of at least 1, got 0"),
        (
            lambda: normalize_merged_split(ONE, tensor(2)),
            "row_split of length 2, that of the sizes",
        ),
        (lambda: gen_seq_mask(ONE, -1), "length of at least 0, got 1 and -1"),
    ],
)
def test_what_does_not_fit_is_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="tensor of dtype float32 or int64, got float64"):
        split_by_indices(ONE, ONE.double(), 2)


def test_more_ids_than_groups_can_count_are_refused(monkeypatch):
    monkeypatch.setattr(id_groups, "_MAX_IDS", 0)
    with pytest.raises(ValueError, match="expected at most 0 ids, got 1"):
        reorder_by_indices(ONE, ONE, 2)
