"""Tensors without values are refused before their addresses reach the core."""

import dataclasses

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from monolith.native_training.ops import (
    fill_with_offset_map,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    map_id_to_embedding,
    sharding_sparse_fids,
    split_by_indices,
    unique_key_with_value_and_offset,
)
from monolith.ops import Ragged
from tests.native_training.ops.cases import refused
from tests.native_training.ops.layout_oracle import small_configs, small_rows, small_shards

IDS = torch.tensor([7, 8, 7])
RAGGED = Ragged(IDS, torch.tensor([0, 2, 3]))
ONE = Ragged.from_lists([[0]])
META_SPLITS = Ragged._unchecked(IDS, RAGGED.row_splits.to("meta"))


def shard(ragged):
    return sharding_sparse_fids({"a": ragged}, small_configs(), batch_size=2, ps_num=2)


def layout_of(field):
    sharded = small_shards()
    moved = dataclasses.replace(sharded, **{field: getattr(sharded, field).to("meta")})
    return fused_embedding_to_layout(small_rows(sharded), moved, small_configs())


def layout_gradient():
    sharded = small_shards()
    outputs = fused_embedding_to_layout(small_rows(sharded), sharded, small_configs())
    gradients = [torch.ones_like(output, device="meta") for output in outputs]
    return fused_embedding_to_layout_grad(gradients, sharded, small_configs())


def layout():
    sharded = small_shards()
    rows = [part.detach().to("meta") for part in small_rows(sharded)]
    return fused_embedding_to_layout(rows, sharded, small_configs())


def unique(ragged):
    return unique_key_with_value_and_offset(ragged, [1, 1])


def fill(pos=ONE, value=None, offset_map=ONE):
    value = torch.ones(1) if value is None else value
    return fill_with_offset_map([pos], [value], offset_map, [1], 1)


@pytest.mark.parametrize(
    ("call", "where", "name"),
    [
        (lambda: split_by_indices(IDS.to("meta"), IDS, 9), "split_by_indices", "indices"),
        (lambda: split_by_indices(IDS, IDS.to("meta"), 9), "split_by_indices", "tensor"),
        (lambda: unique(RAGGED.to("meta")), "unique_key_with_value_and_offset", "ids"),
        (lambda: unique(META_SPLITS), "unique_key_with_value_and_offset", "row_splits"),
        (lambda: fill(pos=ONE.to("meta")), "fill_with_offset_map", "pos[0]"),
        (lambda: fill(value=torch.ones(1).to("meta")), "fill_with_offset_map", "value[0]"),
        (lambda: fill(offset_map=ONE.to("meta")), "fill_with_offset_map", "offset_map"),
        (lambda: shard(RAGGED.to("meta")), "sharding_sparse_fids", "feature 'a'"),
        (lambda: shard(META_SPLITS), "sharding_sparse_fids", "row_splits of 'a'"),
        (
            lambda: map_id_to_embedding([IDS.to("meta")], [torch.ones(3, 1)], IDS),
            "map_id_to_embedding",
            "ids[0]",
        ),
        (layout, "fused_embedding_to_layout", "embeddings[0]"),
        (lambda: layout_of("fid_offset"), "fused_embedding_to_layout", "fid_offset"),
        (lambda: layout_of("feature_offset"), "fused_embedding_to_layout", "feature_offset"),
        (layout_gradient, "fused_embedding_to_layout_grad", "gradient 0"),
    ],
)
def test_meta_tensors_are_refused(call, where, name):
    refused(ValueError, f"[{where}] expected {name} on device cpu, got meta", call)


def test_fake_tensors_are_refused():
    text = "[split_by_indices] expected tensor with values, got a fake tensor"
    with FakeTensorMode():
        ids = torch.zeros(3, dtype=torch.int64)
        refused(ValueError, text, split_by_indices, ids, torch.zeros(3, 2), 2)
