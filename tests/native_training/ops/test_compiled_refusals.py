"""Compiled functions refuse what eager ones refuse, when they run and in the same words."""

import pytest
import torch

from monolith.errors import InvalidArgumentError
from monolith.native_training.ops import (
    fill_with_offset_map,
    first_n,
    fused_gather_embeddings_by_input,
    fused_sorted_segment_sum,
    gather_embeddings_by_input,
    normalize_merged_split,
    reduce_sum,
    sharding_sparse_fids,
    split_by_indices,
    unique_key_with_value_and_offset,
)
from monolith.ops import Ragged
from tests.native_training.ops.layout_oracle import small_configs

CONFIGS = small_configs()


def shard(features):
    return sharding_sparse_fids(features, CONFIGS, batch_size=2, ps_num=2)


WRONG = {
    "bucket": (
        lambda at: split_by_indices(at, at, 3),
        r"^\[split_by_indices\] expected indices in \[0, 3\), got 0 to 9$",
    ),
    "places": (
        lambda at: fused_gather_embeddings_by_input(torch.arange(3.0), [at], [1]),
        r"^\[fused_gather_embeddings_by_input\] expected places in \[0, 3\), got 0 to 9$",
    ),
    "indices": (
        lambda at: reduce_sum(at, torch.ones(3, 1), 3),
        r"^\[reduce_sum\] expected id_indices in \[0, 3\), got 0 to 9$",
    ),
    "descending": (
        lambda at: fused_sorted_segment_sum([at], [torch.ones(3, 1)], [(10, 1)]),
        r"expected indices that never decrease, got \[0, 9, 2\]$",
    ),
    "splits": (
        lambda at: first_n(at, torch.arange(2), 1),
        r"expected row_splits that ascend from 0 to 2, the number of values, got \[0, 9, 2\]$",
    ),
    "merged": (
        lambda at: normalize_merged_split(torch.arange(6), at + 1),
        r"expected row_split of length 14, that of the sizes, got 6$",
    ),
    "keys": (
        lambda at: unique_key_with_value_and_offset(Ragged._unchecked(at[:2], at), [1, 1]),
        "expected row_splits from 0 to 2, the number of values, ascending",
    ),
    "shard": (
        lambda at: shard({"a": Ragged._unchecked(at[:2], at)}),
        "expected row_splits of 'a' that never decrease, got 9 before 2 at index 1$",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_compiled_function_refuses_data_when_it_runs(name, compiled):
    function, text = WRONG[name]
    program = compiled(function)
    program(torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=text):
        program(torch.tensor([0, 9, 2]))


def test_a_compiled_function_refuses_unknown_ids_when_it_runs(compiled):
    keys, rows = torch.tensor([0, 1]), torch.ones(2, 1)
    program = compiled(lambda wanted: gather_embeddings_by_input(keys, rows, wanted))
    program(torch.tensor([0, 0]))
    text = r"^\[gather_embeddings_by_input\] expected ids that are in the lists, got 5, and 0 more"
    with pytest.raises(InvalidArgumentError, match=text):
        program(torch.tensor([0, 5]))


def test_a_compiled_function_refuses_a_short_value_when_it_runs(compiled):
    pos, places = Ragged.from_lists([[0, 1]]), Ragged.from_lists([[0, 4], [2]])
    program = compiled(lambda value: fill_with_offset_map([pos], [value], places, [2], 6))
    with pytest.raises(InvalidArgumentError, match="expected a value of 4 floats, got 3"):
        program(torch.ones(3))


IDS, SPLITS, ROWS = torch.tensor([3, 1, 3]), torch.tensor([0, 2, 3]), torch.ones(3, 2)
FILL = ([torch.tensor([0, 1])], [torch.tensor([0, 2])], IDS * 0, torch.tensor([0, 1, 3]), [2], 6)
OPS = {
    "cut_rows": (ROWS.clone().requires_grad_(), torch.tensor([1, 2]), 2, "{}"),
    "join_rows": ([torch.ones(2), torch.ones(1)], 3),
    "check_range": ("", "", IDS, 7),
    "bucket_order": ("", IDS, 7),
    "reorder_by_indices": (IDS, IDS, 7),
    "fused_reorder_by_indices": ([IDS, IDS], 2, [1, 2]),
    "normalize_merged_split": (torch.tensor([0, 3, 0]), torch.tensor([2, 1])),
    "unique_key_with_value_and_offset": (IDS, SPLITS, [2, 1]),
    "fill_with_offset_map": ([torch.ones(4, requires_grad=True)], *FILL, None),
    "fill_with_offset_map_gradient": (torch.ones(6), [4], *FILL, None),
    "places_of_ids": ("", torch.arange(7), IDS),
    "sorted_indices": ("", torch.arange(3)),
    "ascending_splits": ("", SPLITS, 3),
    "sharding_sparse_fids": (
        *([IDS], [SPLITS], ["a"], [0], [3]),
        *([False], 2, 2, True, 5, 0),
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_an_op_of_compiled_graphs_keeps_the_rules_of_torch(name):
    torch.library.opcheck(getattr(torch.ops.monolith, name), OPS[name])
