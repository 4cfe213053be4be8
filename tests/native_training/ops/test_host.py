"""Ops under other defaults of torch: the same answers in the same dtypes, on the CPU."""

import pytest
import torch

from monolith.native_training.ops import (
    NestedRagged,
    fill_with_offset_map,
    fill_with_offset_map_gradient,
    first_n,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
    fused_reorder_by_indices,
    gen_seq_mask,
    map_id_to_embedding,
    normalize_merged_split,
    ragged_split_by_indices,
    reorder_by_indices,
    split_by_indices,
    unique_key_with_value_and_offset,
)
from monolith.ops import Ragged
from tests.native_training.ops.layout_oracle import small_configs, small_rows, small_shards

IDS, SPLITS = torch.tensor([7, 8, 7]), torch.tensor([0, 2, 3])
SHARDS = torch.tensor([1, 0, 1])
ROWS = torch.arange(6, dtype=torch.float32).view(3, 2)
FLAT = torch.arange(4, dtype=torch.float32)
SHARDED, CONFIGS = small_shards(), small_configs()
LAYOUT_ROWS = [rows.detach() for rows in small_rows(SHARDED)]
GRADIENTS = [torch.ones_like(x) for x in fused_embedding_to_layout(LAYOUT_ROWS, SHARDED, CONFIGS)]
OFFSETS = unique_key_with_value_and_offset(Ragged.from_lists([[7, 8, 7]]), [2])[1]


def filled():
    return fill_with_offset_map([Ragged.from_lists([[0, 1]])], [FLAT], OFFSETS, [2], 6)


def filled_gradient():
    pos = [Ragged.from_lists([[0, 1]])]
    return fill_with_offset_map_gradient(pos, ROWS.view(-1), OFFSETS, [2])


def split_gradient():
    rows = ROWS.clone().requires_grad_()
    split_by_indices(SHARDS, rows, 2)[0].sum().backward()
    return rows.grad


def sharded():
    found = small_shards()
    return found.fids, found.fid_offset, found.feature_offset, found.nfl_offset, found.cuts


CALLS = {
    "sharding": sharded,
    "layout": lambda: fused_embedding_to_layout(LAYOUT_ROWS, SHARDED, small_configs()),
    "layout_grad": lambda: fused_embedding_to_layout_grad(GRADIENTS, SHARDED, CONFIGS),
    "unique": lambda: unique_key_with_value_and_offset(Ragged(IDS, SPLITS), [2, 1]),
    "unique_none": lambda: unique_key_with_value_and_offset(Ragged.from_lists([[]]), [2]),
    "fill": filled,
    "fill_gradient": filled_gradient,
    "map": lambda: map_id_to_embedding([IDS[:2]], [ROWS[:2]], IDS),
    "gather": lambda: fused_gather_embeddings_by_input(FLAT, [SHARDS], [2]),
    "gather_gradient": lambda: fused_gather_embeddings_by_input_gradient(4, [ROWS], [SHARDS], [2]),
    "split": lambda: split_by_indices(SHARDS, ROWS, 2),
    "split_gradient": split_gradient,
    "ragged_split": lambda: ragged_split_by_indices(SHARDS, Ragged(IDS, SPLITS), 2),
    "reorder": lambda: reorder_by_indices(IDS, SHARDS, 2),
    "fused_reorder": lambda: fused_reorder_by_indices([IDS, SHARDS], 2, [1, 2]),
    "fused_reorder_none": lambda: fused_reorder_by_indices([], 2, []),
    "merged_split": lambda: normalize_merged_split(SPLITS, SPLITS[2:]),
    "seq_mask": lambda: gen_seq_mask(SPLITS, 2),
    "first_n": lambda: first_n(SPLITS, ROWS, 1),
    "nested_ragged": lambda: NestedRagged.from_lists([[[7, 8], []], [[9]]]),
}


def tensors(found):
    return [x for x in torch.utils._pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]


def assert_same(found, expected):
    assert expected
    assert [x.device.type for x in found] == ["cpu"] * len(expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_changes_nothing(name, dtype):
    expected = tensors(CALLS[name]())
    torch.set_default_dtype(dtype)
    try:
        found = tensors(CALLS[name]())
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(found, expected)


@pytest.mark.parametrize("name", CALLS)
def test_the_default_device_changes_nothing(name):
    expected = tensors(CALLS[name]())
    with torch.device("meta"):
        found = tensors(CALLS[name]())
    assert_same(found, expected)
