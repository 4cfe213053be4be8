import collections
from typing import NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree

from monolith.native_training.ops import NestedRagged, NestedTensors
from monolith.native_training.ops.nested_tensors import snapshot
from monolith.ops import Ragged
from tests.native_training.ops.cases import refused


@pytest.fixture
def ragged():
    return Ragged.from_lists([[], [1], [2, 3]])


@pytest.mark.req("NT-NEST-T1")
def test_a_leaf_that_is_ragged_twice_is_refused():
    text = "Nested tensor doesn't support nested RaggedTensor."
    refused(ValueError, text, NestedTensors, {"a": NestedRagged.from_lists([[[7]]])})


@pytest.mark.req("NT-NEST-T1")
@pytest.mark.parametrize("leaf", [1.5, 2j, b"x", {1, 2}, range(2)])
def test_any_other_leaf_is_refused(leaf):
    refused(ValueError, f"Tensor is not supported. {leaf}", NestedTensors, [torch.ones(1), leaf])


@pytest.mark.req("NT-NEST-T2")
def test_the_structure_that_is_passed_in_stays(ragged):
    dense, inner = torch.ones(2), [torch.ones(1), 3]
    given = {"a": dense, "b": inner, "c": (ragged, {"k": "s"})}
    before = pytree.tree_leaves(given)
    NestedTensors(given).get_nested_result([torch.zeros(1)] * 4)
    assert list(given) == ["a", "b", "c"]
    assert given["b"] is inner
    assert all(a is b for a, b in zip(pytree.tree_leaves(given), before, strict=True))


@pytest.mark.req("NT-NEST-T3")
def test_a_tensor_that_occurs_twice_is_one_entry(ragged):
    dense = torch.ones(2)
    nested = NestedTensors([dense, {"a": dense}, ragged, ragged])
    assert len(nested.get_tensors()) == 3
    first, other, one, two = nested.get_nested_result(
        [torch.zeros(2), torch.ones(1), torch.ones(2)]
    )
    assert first is other["a"]
    assert one is two


@pytest.mark.req("NT-NEST-T4")
def test_a_mixed_structure_flattens_dense_tensors_first(ragged):
    d0, d1 = torch.ones(1), torch.ones(2)
    nested = NestedTensors(([d0], {"r": ragged, "k": 3, "n": None}, (d1,)))
    tensors = nested.get_tensors()
    expected = [d0, d1, ragged.values, ragged.row_splits]
    assert all(a is b for a, b in zip(tensors, expected, strict=True))
    first, second, third = nested.get_nested_result(tensors)
    assert (first, third) == ([d0], (d1,))
    assert second["r"].to_lists() == [[], [1], [2, 3]]
    assert (second["k"], second["n"]) == (3, None)


@pytest.mark.req("NT-NEST-T5")
@pytest.mark.parametrize("number", [0, 2, 4])
def test_another_number_of_tensors_is_refused(number, ragged):
    nested = NestedTensors([torch.ones(1), ragged])
    text = f"[NestedTensors.get_nested_result] expected 3 tensors, got {number}"
    refused(AssertionError, text, nested.get_nested_result, [torch.ones(1)] * number)


@pytest.mark.req("NT-NEST-T6")
def test_every_leaf_is_what_direct_evaluation_gives(ragged):
    given = {"a": [torch.arange(3), (torch.ones(2),)], "b": ragged, "c": [True, "s", None]}
    nested = NestedTensors(given)
    result = nested.get_nested_result([tensor * 2 for tensor in nested.get_tensors()])
    assert result["a"][0].tolist() == [0, 2, 4]
    assert result["a"][1][0].tolist() == [2, 2]
    assert result["b"].values.tolist() == [2, 4, 6]
    assert result["b"].row_splits.tolist() == [0, 0, 2, 6]
    assert result["c"] == [True, "s", None]


def test_a_parameter_stays_where_it_is():
    parameter = torch.nn.Parameter(torch.ones(2))
    nested = NestedTensors([parameter])
    assert nested.get_tensors() == []
    assert nested.get_nested_result([])[0] is parameter


def test_one_instance_gives_many_results():
    nested = NestedTensors([torch.ones(1)])
    results = [nested.get_nested_result([torch.full((1,), i)])[0].item() for i in range(3)]
    assert results == [0, 1, 2]


def test_dictionaries_keep_their_order_and_kind():
    given = collections.OrderedDict(b=torch.ones(1), a=torch.zeros(1))
    nested = NestedTensors(given)
    result = nested.get_nested_result(nested.get_tensors())
    assert type(result) is collections.OrderedDict
    assert list(result) == ["b", "a"]


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


def test_a_named_tuple_keeps_its_kind():
    pair = Pair(torch.ones(1), 2)
    nested = NestedTensors(pair)
    result = nested.get_nested_result([torch.zeros(1)])
    assert type(result) is Pair
    assert (result.x.item(), result.y) == (0, 2)


def test_none_alone_is_a_structure():
    assert NestedTensors(None).get_nested_result([]) is None


def test_the_static_structure_has_a_word_for_each_tensor(ragged):
    parameter = torch.nn.Parameter(torch.ones(1))
    nested = NestedTensors([torch.ones(1), {"r": ragged, "k": (3, None, "s")}, parameter])
    static = nested.get_static("?")
    assert static == ["?", {"r": "?", "k": (3, None, "s")}, parameter]


def test_a_snapshot_has_new_containers_and_the_same_tensors(ragged):
    dense, twin = torch.ones(2), torch.ones(1)
    given = {"a": dense, "b": [twin, {"r": ragged}], "c": (dense, 3, None), "d": Pair("s", twin)}
    tensors, copied = snapshot(given)
    assert [id(t) for t in tensors[:4]] == [id(t) for t in (dense, twin, dense, twin)]
    assert tensors[4:] == [ragged.values, ragged.row_splits]
    assert copied == {**given, "b": [twin, {"r": copied["b"][1]["r"]}]}
    assert copied["b"][1]["r"].values is ragged.values
    assert copied is not given
    assert copied["b"] is not given["b"]
    assert type(copied["d"]) is Pair


def test_a_snapshot_of_a_tensor_alone_or_of_none():
    tensor = torch.nn.Buffer(torch.ones(1))
    assert snapshot(tensor) == ([tensor], tensor)
    assert snapshot(None) == ([], None)


def test_a_snapshot_keeps_the_kind_of_a_dictionary():
    given = collections.OrderedDict(b=torch.ones(1), a=[torch.ones(1)])
    tensors, copied = snapshot(given)
    assert type(copied) is collections.OrderedDict
    assert tensors == [given["b"], given["a"][0]]
    assert copied["a"] is not given["a"]


def test_a_snapshot_refuses_what_nested_tensors_refuses():
    refused(ValueError, "Tensor is not supported. 1.5", snapshot, [{"a": 1.5}])


def test_gradients_pass_to_the_tensors():
    tensor = torch.ones(2, requires_grad=True)
    nested = NestedTensors({"a": tensor})
    nested.get_nested_result([2 * nested.get_tensors()[0]])["a"].sum().backward()
    assert tensor.grad.tolist() == [2, 2]


def test_a_compiled_function_takes_a_structure_apart(ragged, compiled):
    def doubled(nested):
        apart = NestedTensors(nested)
        return apart.get_nested_result([tensor * 2 for tensor in apart.get_tensors()])

    dense = torch.ones(2)
    result = compiled(doubled)({"a": dense, "b": (dense, ragged), "k": 3, "n": None})
    assert result["a"].tolist() == result["b"][0].tolist() == [2, 2]
    assert result["b"][1].values.tolist() == [2, 4, 6]
    assert (result["k"], result["n"]) == (3, None)
