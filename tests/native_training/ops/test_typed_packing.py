import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.native_training.ops import (
    get_typed_keyed_shape,
    merge_dicts,
    pack_tensors,
    pack_typed_keyed_tensors,
    split_tensors_with_type,
    unpack_packed_tensors,
)
from tests.native_training.ops.cases import refused

DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.bfloat16]


KEYED = st.dictionaries(
    st.text(max_size=3),
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)),
    min_size=1,
    max_size=6,
)


@pytest.mark.req("NT-TENU-T3")
@given(kinds=KEYED)
def test_tensors_of_mixed_dtypes_go_there_and_back(kinds):
    keyed = {name: torch.ones(shape, dtype=dtype) for name, (dtype, shape) in kinds.items()}
    groups = split_tensors_with_type(keyed)
    packed = pack_typed_keyed_tensors(groups)
    for group, buffer in zip(groups, packed[:-1], strict=True):
        names = sorted(group)
        assert buffer.tolist() == [1] * sum(group[name].numel() for name in names)
        assert {tensor.dtype for tensor in group.values()} == {buffer.dtype}
    back = merge_dicts(unpack_packed_tensors(get_typed_keyed_shape(groups), packed))
    assert back.keys() == keyed.keys()
    assert all(torch.equal(back[name], keyed[name]) for name in keyed)


def test_groups_are_ordered_by_the_short_name_of_their_dtype():
    keyed = {str(dtype): torch.ones(1, dtype=dtype) for dtype in DTYPES}
    groups = split_tensors_with_type(keyed)
    names = [str(next(iter(group.values())).dtype) for group in groups]
    expected = ["bfloat16", "float32", "float64", "int32", "int64"]
    assert names == [f"torch.{name}" for name in expected]


@pytest.mark.req("NT-TENU-T2")
@pytest.mark.parametrize("number", [0, 1])
def test_a_packed_list_that_is_too_short_is_refused(number):
    packed = [torch.ones(1)] * number
    refused(ValueError, "Wrong packed_list length", unpack_packed_tensors, [{"x": (1,)}], packed)


def test_no_dictionaries_are_refused():
    text = "[pack_typed_keyed_tensors] expected at least 1 dictionary, got 0"
    refused(ValueError, text, pack_typed_keyed_tensors, [])


def test_a_dictionary_of_two_dtypes_is_refused():
    text = (
        "[pack_typed_keyed_tensors] expected tensors of dtype float32, that of 'a', got int64 of "
        "'b'; group them with split_tensors_with_type"
    )
    keyed = {"a": torch.ones(1), "b": torch.ones(1, dtype=torch.int64)}
    refused(TypeError, text, pack_typed_keyed_tensors, [keyed])


@pytest.mark.parametrize(
    ("shapes", "counts", "text"),
    [
        ([{"x": (2,)}, {"y": (1,)}], [1, 2], "a buffer for each of 2 dictionaries, got 1"),
        ([{"x": (2,)}], [1], "2 counts as the last tensor, got shape (1,)"),
        ([{"x": (2,)}], [2, 2], "dictionaries of [1] entries, got [2]"),
    ],
)
def test_shapes_that_do_not_fit_the_counts_are_refused(shapes, counts, text):
    packed = [torch.ones(2), torch.tensor(counts)]
    text = f"[unpack_packed_tensors] expected {text}"
    refused(ValueError, text, unpack_packed_tensors, shapes, packed)


def test_a_key_in_two_dictionaries_is_refused():
    text = "[merge_dicts] expected each key once, got 'x' twice"
    refused(ValueError, text, merge_dicts, [{"x": 1}, {"y": 2}, {"x": 3}])


def test_a_compiled_function_packs_and_unpacks_dtypes(compiled):
    groups = [{"x": torch.arange(2)}, {"y": torch.ones(2, 2)}]
    shapes = get_typed_keyed_shape(groups)
    packed = compiled(pack_typed_keyed_tensors)(groups)
    assert [part.tolist() for part in packed] == [[0, 1], [1, 1, 1, 1], [1, 1, 2, 4]]
    back = compiled(lambda packed: unpack_packed_tensors(shapes, packed))(packed)
    assert torch.equal(back[1]["y"], groups[1]["y"])


def test_a_compiled_function_groups_and_merges(compiled):
    keyed = {"a": torch.arange(2), "b": torch.ones(1)}
    merged = compiled(lambda keyed: merge_dicts(split_tensors_with_type(keyed)))(keyed)
    assert list(merged) == ["b", "a"]


def test_gradients_pass_typed_packs():
    tensor = torch.ones(2, requires_grad=True)
    packed = pack_typed_keyed_tensors([{"x": tensor}, {"y": torch.arange(2)}])
    assert torch.equal(packed[0], pack_tensors({"x": tensor})[0])
    back = unpack_packed_tensors([{"x": (2,)}, {"y": (2,)}], packed)
    (back[0]["x"] * 3).sum().backward()
    assert tensor.grad.tolist() == [3, 3]
