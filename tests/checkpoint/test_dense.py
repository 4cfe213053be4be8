import pytest
import torch
from safetensors.torch import load, save

from monolith.checkpoint.dense_tensors import facts_of, from_memory, parts_of_file
from monolith.checkpoint.manifest import TensorFact
from monolith.errors import DataLossError
from tests.checkpoint.cases import assert_same_tensors
from tests.checkpoint.golden import golden_tensors


def file_of(tensors):
    return bytearray().join(map(bytes, parts_of_file(tensors)))


@pytest.mark.parametrize(
    "tensors",
    [
        golden_tensors(),
        {},
        {"scalar": torch.tensor(3), "none": torch.zeros(0, 4), "päth": torch.ones(2, 1)},
        {"turned": torch.arange(6).reshape(2, 3).T, "grad": torch.ones(2, requires_grad=True)},
        {"repeated": torch.tensor(0.5, dtype=torch.float64).expand(1)},
    ],
)
def test_safetensors_reads_the_file(tensors):
    assert_same_tensors(load(bytes(file_of(tensors))), tensors)


def test_of_one_dtype_the_file_is_that_of_safetensors():
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, 2), "c": torch.ones(0)}
    assert file_of(tensors) == save(tensors, {"format": "pt"})


def test_a_file_that_is_cut_or_of_others_is_refused():
    tensors = {"a": torch.ones(3)}
    with pytest.raises(DataLossError, match=r"expected a safetensors file, got: .* \(here\)"):
        from_memory(file_of(tensors)[:-1], facts_of(tensors), "here")
    with pytest.raises(DataLossError, match=r"that the manifest names, got others \(here\)"):
        from_memory(file_of({"b": torch.ones(3)}), facts_of(tensors), "here")


def test_tensors_of_a_file_lie_in_its_memory():
    tensors = {"a": torch.ones(3), "flags": torch.tensor([True, False])}
    data = file_of(tensors)
    found = from_memory(data, facts_of(tensors), "here")
    assert_same_tensors(found, tensors)
    data[-2] = 0  # the first flag
    assert found["flags"].tolist() == [False, False]


def test_a_tensor_that_is_not_aligned_is_copied():
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    data = bytearray(len(header).to_bytes(8, "little") + header + b"\0\0\x80\x3f")
    assert len(header) % 4
    assert from_memory(data, {"a": TensorFact("float32", (1,))}, "here")["a"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("header", "got"),
    [
        (b"[]", "a header of list"),
        (b"{", "Expecting property name"),
        (b'{"a":{"dtype":"F8","shape":[1],"data_offsets":[0,1]}}', "'F8'"),
        (b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}}', "a tensor of .* in 4 bytes"),
        (b'{"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}}', "a tensor of .* in 4 bytes"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}}', "a tensor of .* in 4 bytes"),
        (b'{"a":{"dtype":"U8","shape":[-1,-1],"data_offsets":[0,1]}}', "a tensor of .* in 4 bytes"),
        (b'{"a":1}', "not subscriptable"),
    ],
)
def test_a_header_of_something_else_is_refused(header, got):
    data = bytearray(len(header).to_bytes(8, "little") + header + b"1234")
    with pytest.raises(
        DataLossError, match=rf"expected a safetensors file, got: .*{got}.* \(here\)"
    ):
        from_memory(data, {}, "here")


@pytest.mark.parametrize("length", [0, 9, 1 << 63])
def test_a_header_of_no_such_length_is_refused(length):
    with pytest.raises(DataLossError, match=rf"got: a header up to byte {8 + length} of 16 "):
        from_memory(bytearray(length.to_bytes(8, "little") + b"12345678"), {}, "here")
