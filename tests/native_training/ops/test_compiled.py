"""Compiled functions of the ops: the same results, gradients and errors, whatever the sizes are."""

import dataclasses

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils import _pytree as pytree

from monolith.native_training.ops import (
    ShardedFids,
    aligned_flat_concat,
    aligned_flat_split,
    fill_with_offset_map,
    fill_with_offset_map_gradient,
    first_n,
    flatten_layout,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
    fused_reduce_and_split,
    fused_reduce_sum_and_split,
    fused_reorder_by_indices,
    fused_sorted_segment_sum,
    gather_embeddings_by_input,
    gather_embeddings_by_input_gradient_back_prop,
    gen_seq_mask,
    map_id_to_embedding,
    map_id_to_embedding_gradient_back_prop,
    nest_layout,
    normalize_merged_split,
    ragged_split_by_indices,
    reduce_mean,
    reduce_sqrtn,
    reduce_sum,
    reorder_by_indices,
    sharding_sparse_fids,
    split_by_indices,
    unique_key_with_value_and_offset,
)
from monolith.ops import Ragged
from tests.native_training.ops.layout_oracle import small_configs

pytestmark = pytest.mark.thorough

CONFIGS = small_configs()


def ids(size):
    return (torch.arange(size) * 5 + 1) % 7


def rows(*shape):
    numbers = torch.arange(float(torch.Size(shape).numel()))
    return (numbers.sin() + 1.5).view(shape).requires_grad_()


def ragged(size):
    return Ragged.from_lists([ids(size).tolist(), [], ids(size - 1).tolist()])


def numbers(size):
    """Of the distinct keys, by slot, and where each key occurs."""
    unique, places = unique_key_with_value_and_offset(ragged(size), [2, 1, 3])
    return Ragged(torch.arange(len(places)), unique.row_splits), places


def filling(size):
    pos, places = numbers(size)
    return rows(int((pos.lengths * torch.tensor([2, 1, 3])).sum())), pos, places, 5 * size - 3


def features(size):
    cells = Ragged.from_lists([ids(size).tolist(), [3]])
    return {"a": cells, "c": Ragged.from_lists([ids(size + 2).tolist()])}


def shard(batch, version=4):
    options = {"batch_size": 2, "ps_num": 2, "shared": ["c"], "version": version}
    return sharding_sparse_fids(batch, CONFIGS, **options)


def laid_out(batch, table):
    """From ids to outputs in one graph; all features read the first columns of one table."""
    sharded = shard(batch)
    widths = [3, 2] * 2  # of t1 and t2, on both shards
    parts = zip(widths, sharded.fid_list, strict=True)
    whole = [table.index_select(0, part)[:, :width].reshape(-1) for width, part in parts]
    outputs = fused_embedding_to_layout([torch.cat(whole)], sharded, CONFIGS)
    return flatten_layout(nest_layout(outputs, CONFIGS), CONFIGS)


def layout_gradients(batch, vec):
    """Of one output only."""
    return fused_embedding_to_layout_grad([None, None, None, vec], shard(batch), CONFIGS)


def routed(wanted, table):
    """Ids to shards and back in one graph."""
    parts = split_by_indices(wanted % 3, wanted, 3)
    found = [table.index_select(0, part) * i for i, part in enumerate(parts)]
    return map_id_to_embedding(parts, found, wanted)


# A function, and its arguments for a size.
CASES = {
    "aligned": (
        lambda x: aligned_flat_split([x, x], aligned_flat_concat([x, x], 2.0)),
        lambda n: (rows(n, 2),),
    ),
    "fill": (
        lambda value, pos, places, size: fill_with_offset_map(
            [pos], [value], places, [2, 1, 3], size
        ),
        filling,
    ),
    "fill_gradient": (
        lambda gradient, pos, places: fill_with_offset_map_gradient(
            [pos], gradient, places, [2, 1, 3]
        ),
        lambda n: (torch.ones(5 * n), *numbers(n)),
    ),
    "first_n": (
        lambda cells: first_n(cells.row_splits, cells.values, 2),
        lambda n: (Ragged(rows(n, 2), torch.tensor([0, 1, 1, n])),),
    ),
    "fused_gather": (
        lambda flat, places: fused_gather_embeddings_by_input(flat, [places, places], [2, 1]),
        lambda n: (rows(9), ids(n)),
    ),
    "fused_gather_gradient": (
        lambda gradient, places: fused_gather_embeddings_by_input_gradient(
            9, [gradient], [places], [2], scale=0.5
        ),
        lambda n: (torch.ones(n, 2), ids(n)),
    ),
    "fused_reduce_and_split": (
        lambda cells: fused_reduce_and_split([cells.row_splits], [cells.values], [[1, 2]]),
        lambda n: (Ragged(rows(n, 3), torch.tensor([0, 1, 1, n])),),
    ),
    "fused_reduce_sum_and_split": (
        lambda at, values: fused_reduce_sum_and_split(at, values, 7, [1, 2]),
        lambda n: (ids(n), rows(n, 3)),
    ),
    "fused_reorder": (
        lambda x, y: tuple(fused_reorder_by_indices([x, y], 2, [1, 2])),
        lambda n: (ids(n), ids(n + 3)),
    ),
    "fused_sorted_segment_sum": (
        lambda at, values: fused_sorted_segment_sum([at], [values], [(7, 3)]),
        lambda n: (ids(n).sort()[0], rows(n, 3)),
    ),
    "gather": (gather_embeddings_by_input, lambda n: (torch.arange(7), rows(7, 2), ids(n))),
    "gather_gradient": (
        gather_embeddings_by_input_gradient_back_prop,
        lambda n: (torch.arange(7), torch.ones(n, 2), ids(n)),
    ),
    "gen_seq_mask": (lambda splits: gen_seq_mask(splits, 2), lambda n: (ids(n).cumsum(0),)),
    "layout": (laid_out, lambda n: (features(n), rows(9, 3))),
    "layout_grad": (layout_gradients, lambda n: (features(n), torch.ones(2, 4))),
    "map": (
        lambda keys, values, wanted: map_id_to_embedding([keys, keys], [values, values], wanted),
        lambda n: (torch.arange(7), rows(7, 2), ids(n).view(1, n)),
    ),
    "map_gradient": (
        lambda wanted, gradient: map_id_to_embedding_gradient_back_prop(
            [torch.arange(7)], wanted, gradient
        ),
        lambda n: (ids(n), torch.ones(n, 2)),
    ),
    "merged_split": (
        normalize_merged_split,
        lambda n: (torch.tensor([0, 3, *([0] * n), 2]), torch.tensor([2, n + 1])),
    ),
    "ragged_split": (
        lambda x, cells: ragged_split_by_indices(x, cells, 7),
        lambda n: (ids(2 * n - 1), ragged(n)),
    ),
    "reduce_mean": (reduce_mean, lambda n: (ids(n), rows(n, 2), torch.tensor([n + 5]))),
    "reduce_sqrtn": (reduce_sqrtn, lambda n: (ids(n), rows(n, 2), torch.tensor(n + 5))),
    "reduce_sum": (reduce_sum, lambda n: (ids(n), rows(n, 2), 7)),
    "reorder": (lambda x: reorder_by_indices(x, x % 3, 3), lambda n: (ids(n),)),
    "reorder_floats": (
        lambda x, shards: reorder_by_indices(x, shards, 7),
        lambda n: (rows(n, 2).detach(), ids(n)),
    ),
    "routed": (routed, lambda n: (ids(n), rows(7, 2))),
    "shard": (shard, lambda n: (features(n),)),
    "shard_lists": (
        lambda batch: (shard(batch).shard_fids, shard(batch, 5).fid_list_row_splits),
        lambda n: (features(n),),
    ),
    "split": (lambda at, x: split_by_indices(at, x, 7), lambda n: (ids(n), rows(n, 2))),
    "unique": (
        lambda keys: unique_key_with_value_and_offset(keys, [2, 1, 3]),
        lambda n: (ragged(n),),
    ),
}


def tensors(found):
    if isinstance(found, ShardedFids):
        found = [getattr(found, field.name) for field in dataclasses.fields(found)]
    return [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]


def gradients(found, arguments):
    given = [x for x in tensors(list(arguments)) if x.requires_grad]
    results = [x for x in tensors(found) if x.requires_grad]
    if not results:
        return []
    return list(torch.autograd.grad([(x * x).sum() for x in results], given))


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_function_has_the_same_results_and_gradients(name, compiled):
    function, arguments = CASES[name]
    program = compiled(function)
    for size in (3, 8):
        given = arguments(size)
        found, expected = program(*given), function(*given)
        torch.testing.assert_close(tensors(found), tensors(expected), rtol=0, atol=0)
        torch.testing.assert_close(gradients(found, given), gradients(expected, given))


@pytest.mark.parametrize("name", ["fill", "layout", "ragged_split", "routed"])
def test_a_compiled_function_needs_no_third_graph_for_a_third_size(name):
    function, arguments = CASES[name]
    graphs = CompileCounterWithBackend("aot_eager")
    program = torch.compile(function, fullgraph=True, backend=graphs)
    for size in (3, 8, 13, 21):
        program(*arguments(size))
    torch._dynamo.reset()
    assert graphs.frame_count == 2
