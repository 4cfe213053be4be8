import pytest
import torch
from safetensors.torch import load, save

from monolith.checkpoint.dense import facts_of, from_bytes, parts_of_file
from monolith.errors import DataLossError
from tests.checkpoint.cases import assert_same_tensors
from tests.checkpoint.golden import golden_tensors


def file_of(tensors):
    return b"".join(map(bytes, parts_of_file(tensors)))


@pytest.mark.parametrize(
    "tensors",
    [
        golden_tensors(),
        {},
        {"scalar": torch.tensor(3), "none": torch.zeros(0, 4), "päth": torch.ones(2, 1)},
        {"turned": torch.arange(6).reshape(2, 3).T, "grad": torch.ones(2, requires_grad=True)},
    ],
)
def test_safetensors_reads_the_file(tensors):
    assert_same_tensors(load(file_of(tensors)), tensors)


def test_of_one_dtype_the_file_is_that_of_safetensors():
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, 2), "c": torch.ones(0)}
    assert file_of(tensors) == save(tensors, {"format": "pt"})


def test_a_file_that_is_cut_or_of_others_is_refused():
    tensors = {"a": torch.ones(3)}
    with pytest.raises(DataLossError, match=r"expected a safetensors file, got: .* \(here\)"):
        from_bytes(file_of(tensors)[:-1], facts_of(tensors), "here")
    with pytest.raises(DataLossError, match=r"that the manifest names, got others \(here\)"):
        from_bytes(file_of({"b": torch.ones(3)}), facts_of(tensors), "here")
