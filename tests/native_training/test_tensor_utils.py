import pytest
import torch

from monolith.native_training import tensor_utils
from monolith.native_training.ops import NestedRagged
from monolith.ops import Ragged


@pytest.fixture
def typed():
    """By group: int64 t1, t2; float32 t4, t3; float64 t5."""
    return [
        {"t1": torch.arange(8).reshape(2, 4), "t2": torch.arange(4)},
        {"t4": torch.ones(2, 2), "t3": torch.zeros(2)},
        {"t5": torch.arange(7, dtype=torch.float64)},
    ]


def assert_same(found, expected):
    assert [list(group) for group in found] == [sorted(group) for group in expected]
    for group, other in zip(found, expected, strict=True):
        assert all(torch.equal(group[name], other[name]) for name in other)


@pytest.mark.req("TS-TENU-T1")
def test_maybe_squeeze_3d_tensor():
    ragged = Ragged.from_lists([[0, 1], [2]])
    nested = NestedRagged.from_lists([[[0, 1]], [[2]]])
    assert tensor_utils.maybe_squeeze_3d_tensor(ragged).to_lists() == [[0, 1], [2]]
    assert tensor_utils.maybe_squeeze_3d_tensor(nested).to_lists() == [[0, 1], [2]]


@pytest.mark.req("TS-TENU-T2")
def test_pack_tensors():
    keyed = {"x": torch.tensor([1, 2]), "y": torch.tensor([[4, 5], [6, 7]])}
    packed, sizes = tensor_utils.pack_tensors(keyed)
    assert (packed.tolist(), sizes.tolist()) == ([1, 2, 4, 5, 6, 7], [2, 4])
    shapes = tensor_utils.get_keyed_shape(keyed)
    assert_same([tensor_utils.unpack_tensors(shapes, (packed, sizes))], [keyed])


@pytest.mark.req("TS-TENU-T3")
def test_pack_typed_keyed_tensors(typed):
    *buffers, counts = tensor_utils.pack_typed_keyed_tensors(typed)
    for buffer, group in zip(buffers, typed, strict=True):
        assert torch.equal(buffer, tensor_utils.pack_tensors(group)[0])
    assert counts.tolist() == [2, 2, 1, 8, 4, 2, 4, 7]
    shapes = tensor_utils.get_typed_keyed_shape(typed)
    assert_same(tensor_utils.unpack_packed_tensors(shapes, [*buffers, counts]), typed)


@pytest.mark.req("TS-TENU-T4")
def test_pack_typed_keyed_tensors_with_placeholder():
    shapes = [{"t1": (None, 3, 4), "t2": (None, 2)}, {"t3": (None,), "t4": (None, 2, 2)}]
    keyed = [
        {"t1": torch.arange(24).reshape(2, 3, 4), "t2": torch.arange(4).reshape(2, 2)},
        {"t3": torch.rand(3), "t4": torch.rand(2, 2, 2)},
    ]
    packed = tensor_utils.pack_typed_keyed_tensors(keyed)
    assert_same(tensor_utils.unpack_packed_tensors(shapes, packed), keyed)


@pytest.mark.req("TS-TENU-T5")
def test_split_tensors_with_type_and_merge_dicts(typed):
    keyed = tensor_utils.merge_dicts(typed)
    groups = tensor_utils.split_tensors_with_type(keyed)
    assert [list(group) for group in groups] == [["t3", "t4"], ["t5"], ["t1", "t2"]]
    assert_same([dict(sorted(tensor_utils.merge_dicts(groups).items()))], [keyed])
