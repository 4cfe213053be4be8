"""Ragged data in copies, data loaders, trees of tensors and compiled programs."""

import copy
import pickle

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from monolith.ops import Ragged

ROWS = [[7, 8], [], [9]]
DOUBLED = [[14, 16], [], [18]]


@pytest.fixture
def ragged():
    return Ragged.from_lists(ROWS)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_has_the_same_rows(ragged, copied):
    assert copied(ragged).to_lists() == ROWS


def test_a_pickle_is_checked_when_it_is_read(ragged):
    ragged.row_splits[0] = 1
    data = pickle.dumps(ragged)
    with pytest.raises(ValueError, match="row_splits that begin with 0, got 1"):
        pickle.loads(data)


def test_a_data_loader_pins_both_tensors(ragged, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    pinned = pin_memory({"user": ragged})["user"]
    assert pinned.values.tolist() == [8, 9, 10]
    assert pinned.row_splits.tolist() == [1, 3, 3, 4]


def test_a_data_loader_passes_it_on(ragged):
    loader = DataLoader([{"user": ragged}], batch_size=None)
    assert [batch["user"] for batch in loader] == [ragged]


@pytest.mark.dist
def test_it_comes_from_the_worker_of_a_data_loader():
    loader = DataLoader(ROWS, batch_size=2, collate_fn=Ragged.from_lists, num_workers=1)
    assert [batch.to_lists() for batch in loader] == [[[7, 8], []], [[9]]]


def test_its_leaves_are_values_and_row_splits(ragged):
    leaves = pytree.tree_flatten_with_path({"user": ragged})[0]
    assert [pytree.keystr(path) for path, _ in leaves] == ["['user'].values", "['user'].row_splits"]
    assert leaves[0][1] is ragged.values
    assert leaves[1][1] is ragged.row_splits


def test_a_tree_of_anything_is_rebuilt_unchecked(ragged):
    shapes = pytree.tree_map(lambda leaf: tuple(leaf.shape), ragged)
    assert (shapes.values, shapes.row_splits) == ((3,), (4,))


def test_a_compiled_function_takes_it(ragged, compiled):
    function = compiled(lambda x: (x.values + 1, x.row_splits * 2, x.lengths, len(x)))
    values, splits, lengths, num_rows = function(ragged)
    assert values.tolist() == [8, 9, 10]
    assert splits.tolist() == [0, 4, 4, 6]
    assert lengths.tolist() == [2, 0, 1]
    assert num_rows == 3


def test_a_compiled_function_takes_other_sizes_later(ragged, compiled):
    function = compiled(lambda x: x.values.sum() + len(x))
    longer = Ragged.from_lists([[1], [2, 3], [], [4]])
    assert [int(function(x)) for x in (ragged, longer)] == [27, 14]


@pytest.mark.parametrize(
    "build",
    [
        lambda x: Ragged(x.values * 2, x.row_splits),
        lambda x: Ragged(x.values * 2, x.row_splits.int()),
        lambda x: Ragged.from_lengths(x.values * 2, x.lengths),
        lambda x: Ragged.from_offsets(x.values * 2, x.offsets),
        lambda x: Ragged(x.values * 2, x.row_splits).to("cpu"),
    ],
)
def test_a_compiled_function_builds_one(build, ragged, compiled):
    assert compiled(build)(ragged).to_lists() == DOUBLED


def test_a_compiled_function_takes_a_nested_tensor(ragged, compiled):
    function = compiled(lambda nested: Ragged.from_nested(nested).values * 2)
    assert function(ragged.to_nested()).tolist() == [14, 16, 18]


def test_gradients_pass_through_a_compiled_function(compiled):
    values = torch.ones(3, requires_grad=True)
    compiled(lambda x: (x.values * 2).sum())(Ragged(values, torch.tensor([0, 2, 2, 3]))).backward()
    assert values.grad.tolist() == [2, 2, 2]


class Double(torch.nn.Module):
    def forward(self, ragged):
        return Ragged(ragged.values * 2, ragged.row_splits)


def test_an_exported_program_takes_and_returns_it(ragged):
    program = torch.export.export(Double(), (ragged,))
    assert program.module()(ragged).to_lists() == DOUBLED
