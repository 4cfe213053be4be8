"""An iterator that can be read once gives what a list gives."""

import pytest
import torch

from monolith.cluster import LocalServers
from monolith.native_training.distributed_ps import DistributedHashTable, PartitionedHashTable
from monolith.native_training.nested_tensors import NestedTensors
from monolith.native_training.ops import ParserContext
from monolith.native_training.ragged_utils import fused_value_rowids
from monolith.native_training.static_reshape_op import static_reshape
from monolith.native_training.tensor_utils import (
    merge_dicts,
    pack_tensors,
    pack_typed_keyed_tensors,
    split_tensors_with_type,
    unpack_packed_tensors,
)
from monolith.ops import Ragged
from monolith.table import Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD
from tests.native_training.tables.partitioned_oracle import TWIN_BATCH, TWIN_OUTPUT, TWINS

NAMES = ["y", "x", "z"]
TENSORS = [torch.tensor([4.0, 5.0]), torch.tensor([[1.0]]), torch.tensor([6.0])]


def as_lists(packed):
    return [tensor.tolist() for tensor in packed]


@pytest.mark.req("G-T4")
def test_pairs_of_zip_are_packed_as_a_dictionary():
    expected = as_lists(pack_tensors(dict(zip(NAMES, TENSORS, strict=True))))
    assert expected == [[1, 4, 5, 6], [1, 2, 1]]
    assert as_lists(pack_tensors(zip(NAMES, TENSORS, strict=True))) == expected
    assert as_lists(pack_tensors(list(zip(NAMES, TENSORS, strict=True)))) == expected


@pytest.mark.req("G-T4")
def test_dictionaries_of_a_generator_are_packed_as_a_list():
    groups = [{"a": TENSORS[0]}, {"b": TENSORS[1], "c": TENSORS[2]}]
    expected = as_lists(pack_typed_keyed_tensors(groups))
    assert as_lists(pack_typed_keyed_tensors(iter(groups))) == expected
    shapes = [{"a": (None,)}, {"b": (1, 1), "c": (1,)}]
    unpacked = unpack_packed_tensors(iter(shapes), iter(pack_typed_keyed_tensors(groups)))
    assert [list(group) for group in unpacked] == [["a"], ["b", "c"]]
    assert list(merge_dicts(iter(groups))) == ["a", "b", "c"]


@pytest.mark.req("G-T4")
def test_pairs_of_zip_are_grouped_by_type():
    groups = split_tensors_with_type(zip("ab", [TENSORS[0], torch.ones(1).long()], strict=True))
    assert [list(group) for group in groups] == [["a"], ["b"]]


@pytest.mark.req("G-T4")
def test_row_ids_of_rows_of_a_generator():
    rows = [[], [1], [2, 3]]
    assert fused_value_rowids(Ragged.from_lists(row for row in rows)).tolist() == [1, 2, 2]
    for wrong in (rows, iter(rows)):
        with pytest.raises(ValueError, match="rt must be RaggedTensor"):
            fused_value_rowids(wrong)


@pytest.mark.req("G-T4")
def test_a_generator_in_a_nest_is_a_list():
    nested = NestedTensors(
        {"a": (tensor for tensor in TENSORS), "b": zip("x", TENSORS[:1], strict=True)}
    )
    assert as_lists(nested.get_tensors()) == as_lists(TENSORS)
    result = nested.get_nested_result(2 * tensor for tensor in TENSORS)
    assert as_lists(result["a"]) == [[8, 10], [[2]], [12]]
    assert result["b"][0][0] == "x"
    assert result["b"][0][1] is result["a"][0]


@pytest.mark.req("G-T4")
def test_shapes_of_a_generator():
    outputs, sizes = static_reshape(iter(TENSORS), ((None, 1) for _ in TENSORS))
    assert [tuple(output.shape) for output in outputs] == [(2, 1), (1, 1), (1, 1)]
    assert sizes.tolist() == [2, 1, 1]


@pytest.mark.req("G-T4")
@pytest.mark.parametrize("kind", [list, iter])
def test_gradients_of_a_distributed_table(kind):
    config = TableConfig("user", Segment(1, SGD(1.0), Zeros()))
    with LocalServers(2) as servers:
        table = DistributedHashTable(config, servers)
        rows = [table.lookup(torch.tensor(ids)) for ids in ([5, 5, 6], [7])]
        sum(part.sum() for part in rows).backward()
        table.apply_gradients(kind([(part.grad, part) for part in rows]))
        assert table.lookup(torch.tensor([5, 6, 7])).tolist() == [[-2], [-1], [-1]]


@pytest.mark.req("G-T4")
@pytest.mark.parametrize("kind", [list, iter])
def test_gradients_of_a_partitioned_table(kind):
    params = PartitionedHashTable.gen_feature_configs(2, TWINS, TWIN_OUTPUT)
    context = ParserContext(sharding_sparse_fids_op_params=params)
    with LocalServers(2) as servers:
        table, bundle = PartitionedHashTable(context, servers), {}
        flat = table.flatten_layout(table.lookup(TWIN_BATCH, bundle))
        before = [output.detach().clone() for output in flat]
        pairs = [(torch.ones_like(output), output) for output in flat]
        applied = table.apply_gradients(kind(pairs), auxiliary_bundle=bundle)
        after = table.flatten_layout(table.lookup(TWIN_BATCH))
        assert applied.num_applied == 4
        assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))
