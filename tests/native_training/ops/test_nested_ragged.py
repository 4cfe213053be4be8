import pickle

import pytest
import torch
from torch.utils import _pytree as pytree

from monolith.native_training.ops import NestedRagged, maybe_squeeze_3d_tensor
from monolith.ops import Ragged
from tests.native_training.ops.cases import refused

ROWS = [[[7, 8], []], [], [[9]]]

# The type.


def test_it_is_what_its_lists_are():
    ragged = NestedRagged.from_lists(ROWS)
    assert ragged.to_lists() == ROWS
    assert len(ragged) == ragged.num_rows == 3


def test_inner_rows_and_splits_are_shared():
    inner, splits = Ragged.from_lists([[7, 8], [], [9]]), torch.tensor([0, 2, 2, 3])
    ragged = NestedRagged(inner, splits)
    assert ragged.values is inner
    assert ragged.row_splits.data_ptr() == splits.data_ptr()
    assert ragged.to_lists() == ROWS


def test_a_pickle_has_the_same_rows():
    assert pickle.loads(pickle.dumps(NestedRagged.from_lists(ROWS))).to_lists() == ROWS


def test_its_leaves_are_three_tensors():
    leaves, tree = pytree.tree_flatten(NestedRagged.from_lists(ROWS))
    assert [leaf.tolist() for leaf in leaves] == [[7, 8, 9], [0, 2, 2, 3], [0, 2, 2, 3]]
    assert pytree.tree_unflatten(leaves, tree).to_lists() == ROWS


def test_values_that_are_not_ragged_are_refused():
    text = "[NestedRagged] expected values as Ragged, got Tensor"
    refused(TypeError, text, NestedRagged, torch.ones(3), torch.tensor([0, 3]))


def test_splits_that_do_not_end_with_the_inner_rows_are_refused():
    text = "[NestedRagged] expected row_splits that end with 1, the number of values, got 2"
    refused(ValueError, text, NestedRagged, Ragged.from_lists([[7, 8]]), torch.tensor([0, 2]))


# Squeezing.


@pytest.mark.req("NT-TENU-T1")
@pytest.mark.parametrize("argument", [torch.ones(2, 2), [[0, 1], [2]]], ids=["dense", "list"])
def test_a_squeeze_of_anything_but_ragged_is_refused(argument):
    refused(ValueError, "input must be RaggedTensor", maybe_squeeze_3d_tensor, argument)


@pytest.mark.req("NT-TENU-T1")
@pytest.mark.parametrize(
    "argument",
    [
        NestedRagged(Ragged(torch.ones(1, 2), torch.tensor([0, 1])), torch.tensor([0, 1])),
        Ragged(torch.ones(1, 2, 2), torch.tensor([0, 1])),
    ],
    ids=["nested", "plain"],
)
def test_a_squeeze_of_rank_4_is_refused(argument):
    with pytest.raises(ValueError, match="Unknown shape of RaggedTensor") as caught:
        maybe_squeeze_3d_tensor(argument)
    assert caught.value.args == ("Unknown shape of RaggedTensor. ", argument)


def test_a_squeeze_of_rank_2_gives_the_same_object():
    ragged = Ragged.from_lists([[0, 1], [2]])
    assert maybe_squeeze_3d_tensor(ragged) is ragged


def test_the_ragged_axis_itself_is_not_squeezed():
    text = (
        "[maybe_squeeze_3d_tensor] expected axis 1 of length 1, got rows of different lengths "
        "of values of shape (1, 2); it is the ragged axis"
    )
    ragged = Ragged(torch.ones(1, 2), torch.tensor([0, 1]))
    refused(ValueError, text, maybe_squeeze_3d_tensor, ragged)


@pytest.mark.parametrize("rows", [[[[7], [8]]], [[[7], [8]], []]], ids=["more", "unequal"])
def test_an_axis_of_another_length_is_not_squeezed(rows):
    text = (
        f"[maybe_squeeze_3d_tensor] expected one row in each of the {len(rows)} rows, "
        "got 2 in all, of which some row has another number"
    )
    refused(ValueError, text, maybe_squeeze_3d_tensor, NestedRagged.from_lists(rows))


def test_gradients_pass_a_squeeze():
    values = torch.ones(3, requires_grad=True)
    inner = Ragged(values, torch.tensor([0, 2, 3]))
    squeezed = maybe_squeeze_3d_tensor(NestedRagged(inner, torch.tensor([0, 1, 2])))
    (squeezed.values * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert values.grad.tolist() == [1, 2, 3]


def test_meta_tensors_are_squeezed_by_shape():
    inner = Ragged.from_lists([[7], [8]], device="meta")
    ragged = NestedRagged(inner, torch.tensor([0, 0, 2], device="meta"))
    assert maybe_squeeze_3d_tensor(ragged) is inner


def test_a_compiled_function_squeezes(compiled):
    function = compiled(lambda x: maybe_squeeze_3d_tensor(x).values * 2)
    assert function(NestedRagged.from_lists([[[0, 1]], [[2]]])).tolist() == [0, 2, 4]
