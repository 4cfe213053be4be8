import io
import os
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from monolith.checkpoint.vectors.vector_tensors import TensorVectors, matrix_name, open_tensors
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError

MATRIX = torch.arange(12.0).reshape(6, 2)
STATE = {"items.weight": MATRIX, "mlp.weight": torch.ones(3, 3), "mlp.bias": torch.ones(3)}


class Malicious:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture
def write(tmp_path):
    def call(value, name="model.pt", **options):
        path = str(tmp_path / name)
        if name.endswith(".safetensors"):
            save_file(value, path)
        else:
            torch.save(value, path, **options)
        return path

    return call


def rows_of(path, name=None, chunk_rows=4, keys=None):
    """Return keys and vectors of the chunks of a file."""
    with open_tensors(path) as file:
        name = matrix_name(file.facts, name, path)
        keys = np.arange(file.facts[name].shape[0]) if keys is None else np.array(keys)
        source = TensorVectors(file, name, keys, where="ids.txt", path=path)
        chunks = list(source.chunks(chunk_rows))
    assert [chunk.first_row for chunk in chunks] == list(range(0, len(keys), chunk_rows))
    return torch.cat([c.keys for c in chunks]), torch.cat([c.vectors for c in chunks])


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "model.safetensors"])
def test_a_matrix_of_a_state_is_read_in_chunks(write, name):
    keys, vectors = rows_of(write(STATE, name), "items.weight")
    assert keys.tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.equal(vectors, MATRIX)


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_floats_become_float32(write, name, dtype):
    assert torch.equal(rows_of(write({"w": MATRIX.to(dtype)}, name))[1], MATRIX)


@pytest.mark.parametrize(
    "value",
    [MATRIX, torch.nn.Parameter(MATRIX), {"model": {"w": MATRIX}, "epoch": 3}, [("w", 1)]],
    ids=["tensor", "parameter", "nested", "none"],
)
def test_the_only_matrix_needs_no_name(write, value):
    path = write(value)
    if isinstance(value, list):
        with pytest.raises(InvalidArgumentError, match=r"one matrix in .*, got none; choose"):
            rows_of(path)
    else:
        assert torch.equal(rows_of(path)[1], MATRIX)


def test_a_file_of_an_older_torch_and_a_view_are_read(write):
    path = write({"w": MATRIX.T.contiguous().T}, _use_new_zipfile_serialization=False)
    assert torch.equal(rows_of(path)[1], MATRIX)


def test_a_tensor_of_a_nested_state_has_a_name_with_dots(write):
    path = write({"model": STATE, "other": MATRIX})
    assert torch.equal(rows_of(path, "model.items.weight")[1], MATRIX)


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (None, "expected one matrix in .*, got items.weight 6x2, mlp.weight 3x3; choose one with"),
        ("item.weight", "matrix named 'item.weight' in .*, got none; did you mean 'items.weight'"),
        ("zzz", "got none; the matrices are items.weight 6x2, mlp.weight 3x3"),
        ("mlp.bias", r"got a tensor of shape \(3,\); the matrices are items.weight 6x2, mlp"),
    ],
)
def test_a_wrong_choice_of_a_matrix_is_refused(write, name, tensor, message):
    with pytest.raises(InvalidArgumentError, match=message):
        rows_of(write(STATE, name), tensor)


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_numbers_that_are_no_short_floats_are_refused(write, name):
    path = write({"w": MATRIX.double()}, name)
    with pytest.raises(InvalidArgumentError, match=r"got (float64|F64) .*save tensor.float()"):
        rows_of(path)


def test_the_number_of_keys_is_that_of_the_rows(write):
    message = "expected 6 keys, one for each row of tensor 'w' in .*, got 5 in ids.txt"
    with pytest.raises(InvalidArgumentError, match=message):
        rows_of(write({"w": MATRIX}), keys=[1, 2, 3, 4, 5])


def test_a_key_that_occurs_twice_is_refused(write):
    message = "each key once, got key 4 in row 1 and in row 3 of ids.txt"
    with pytest.raises(InvalidArgumentError, match=message):
        rows_of(write({"w": MATRIX}), keys=[9, 4, 9, 4, 4, 5])


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path, is_zip):
    trap, path = tmp_path / "trap", tmp_path / "model.pt"
    value = {"w": MATRIX, "x": Malicious(trap)}
    if is_zip:
        torch.save(value, path)
    else:
        path.write_bytes(pickle.dumps(value))
    with pytest.raises(InvalidArgumentError, match="which may run code and is not loaded"):
        rows_of(str(path))
    assert not trap.exists()
    torch.load(path, weights_only=False) if is_zip else pickle.loads(path.read_bytes())
    assert trap.exists()


def test_a_saved_module_is_refused(write):
    with pytest.raises(
        InvalidArgumentError,
        match=r"pickle of torch.nn.modules.linear.Linear, .*save the state_dict\(\)",
    ):
        rows_of(write(torch.nn.Linear(2, 2)))


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
@pytest.mark.parametrize("kept", [0, 6, 0.5, 0.9])
def test_a_truncated_file_is_refused(write, name, kept):
    path = write({"w": torch.zeros(64, 16)}, name)
    with open(path, "rb+") as file:
        size = file.seek(0, io.SEEK_END)
        file.truncate(int(size * kept) if isinstance(kept, float) else kept)
    with pytest.raises((DataLossError, InvalidArgumentError), match=r"\[import\] expected"):
        rows_of(path)


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(tmp_path):
    with pytest.raises(NotFoundError, match=r"a file of tensors, got none at 'no.pt'"):
        rows_of("no.pt")
    (tmp_path / "model.npy").touch()
    with pytest.raises(InvalidArgumentError, match=r"ends in .pt, .pth or .safetensors, got"):
        rows_of(str(tmp_path / "model.npy"))
