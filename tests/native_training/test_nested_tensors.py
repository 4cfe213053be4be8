import pytest
import torch

from monolith.native_training import nested_tensors
from monolith.native_training.nested_tensors import NestedTensors
from monolith.ops import Ragged

ROWS = [[], [1], [2, 3]]


@pytest.mark.req("TS-NEST-T1")
def test_basic():
    nested = NestedTensors({"a": torch.ones([]), "b": (torch.ones([]), torch.ones([]))})
    tensors = [torch.zeros_like(tensor) for tensor in nested.get_tensors()]
    assert nested.get_nested_result(tensors) == {"a": 0, "b": (0, 0)}


@pytest.mark.req("TS-NEST-T2")
def test_constant():
    nested = NestedTensors({"a": {"b": 2}})
    assert nested.get_tensors() == []
    assert nested.get_nested_result([]) == {"a": {"b": 2}}


@pytest.mark.req("TS-NEST-T3")
def test_ragged_tensor():
    nested = NestedTensors(Ragged.from_lists(ROWS))
    assert nested.get_nested_result(nested.get_tensors()).to_lists() == ROWS


@pytest.mark.req("TS-NEST-T4")
def test_ragged_tensor_with_place_holder():
    nested = NestedTensors(Ragged.from_lists(ROWS))
    values = torch.empty(9, dtype=torch.int64, device="meta")
    splits = torch.empty(2, dtype=torch.int64, device="meta")
    result = nested.get_nested_result([values, splits])
    assert isinstance(result, Ragged)
    assert result.values is values
    assert result.row_splits is splits


def test_helpers_go_between_ragged_and_flat_tensors():
    pair = [Ragged.from_lists(ROWS), Ragged.from_lists([[4]])]
    flat = NestedTensors._ragged_to_flatten(pair)
    assert [tensor.tolist() for tensor in flat] == [[1, 2, 3], [0, 0, 1, 3], [4], [0, 1]]
    assert [one.to_lists() for one in NestedTensors._flatten_to_ragged(flat)] == [ROWS, [[4]]]
    tensors = NestedTensors._convert_ragged_to_tensors(pair[0])
    assert NestedTensors._convert_tensors_to_ragged(*tensors).to_lists() == ROWS


def test_a_helper_maps_leaves_in_order():
    seen = []
    result = nested_tensors._iterate({"b": [1, None], "a": (2,)}, lambda x: seen.append(x) or -x)
    assert result == {"b": [-1, None], "a": (-2,)}
    assert seen == [1, 2]
