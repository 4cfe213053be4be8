import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from monolith.native_training.ops import NestedRagged, fused_value_rowids
from monolith.ops import Ragged
from tests.native_training.ops.cases import refused

ROWS = [[], [1], [2, 3]]


@pytest.mark.req("NT-RAGU-T2")
@given(lengths=st.lists(st.integers(0, 4), max_size=12))
def test_row_ids_repeat_the_number_of_each_row(lengths):
    ragged = Ragged.from_lists([[0] * length for length in lengths])
    rowids = fused_value_rowids(ragged)
    numbers = torch.arange(len(lengths))
    assert torch.equal(rowids, torch.repeat_interleave(numbers, ragged.lengths))
    assert rowids.dtype == torch.int64


@pytest.mark.req("NT-RAGU-T2")
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[], [5], []], [1]),
        ([[5], [], [6]], [0, 2]),
        ([[5], [6], []], [0, 1]),
        ([[], [], []], []),
        ([], []),
    ],
)
def test_empty_rows_have_no_row_ids(rows, expected):
    assert fused_value_rowids(Ragged.from_lists(rows)).tolist() == expected


@pytest.mark.req("NT-RAGU-T1")
@pytest.mark.parametrize(
    "argument",
    [torch.ones(2), ROWS, None, Ragged.from_lists(ROWS).to_nested()],
    ids=["dense", "list", "none", "jagged"],
)
def test_anything_but_ragged_is_refused(argument):
    refused(ValueError, "rt must be RaggedTensor", fused_value_rowids, argument)


def test_rows_of_rows_are_refused():
    nested = NestedRagged.from_lists([[[7]]])
    refused(ValueError, "rt must be RaggedTensor", fused_value_rowids, nested)


def test_nothing_is_kept_before_the_first_call():
    assert Ragged.from_lists(ROWS).monolith_fused_value_rowids is None


def test_the_result_is_kept_in_a_field():
    ragged = Ragged.from_lists(ROWS)
    rowids = fused_value_rowids(ragged)
    assert ragged.monolith_fused_value_rowids is rowids


@pytest.mark.parametrize(
    "derive",
    [
        copy.copy,
        copy.deepcopy,
        lambda x: pickle.loads(pickle.dumps(x)),
        lambda x: Ragged(x.values, x.row_splits),
        lambda x: pytree.tree_map(lambda leaf: leaf, x),
        lambda x: x.to("meta"),
    ],
    ids=["copy", "deepcopy", "pickle", "constructor", "tree", "move"],
)
def test_a_derived_object_does_not_have_it(derive):
    ragged = Ragged.from_lists(ROWS)
    fused_value_rowids(ragged)
    assert derive(ragged).monolith_fused_value_rowids is None


@pytest.mark.parametrize(
    "splits", [[], [1, 3], [0, 2], [0, 4, 3], [0, 2, 1, 3], [0, -1, 3], [0, 1 << 62, 3]]
)
def test_splits_of_an_unchecked_object_are_checked_before_memory_is_written(splits):
    ragged = Ragged._unchecked(torch.ones(3), torch.tensor(splits, dtype=torch.int64))
    text = (
        "[fused_value_rowids] expected row_splits that run from 0 to 3, the number of values, "
        "without a step back; build it with Ragged"
    )
    refused(ValueError, text, fused_value_rowids, ragged)


def test_meta_tensors_give_the_shape():
    rowids = fused_value_rowids(Ragged.from_lists(ROWS, device="meta"))
    assert (rowids.is_meta, rowids.dtype, rowids.shape) == (True, torch.int64, (3,))


def test_fake_tensors_give_the_shape():
    with FakeTensorMode():
        rowids = fused_value_rowids(Ragged.from_lists(ROWS))
    assert (type(rowids), rowids.dtype, rowids.shape) == (FakeTensor, torch.int64, (3,))


def test_a_compiled_function_computes_it_in_its_graph(compiled):
    ragged = Ragged.from_lists(ROWS)
    function = compiled(lambda x: fused_value_rowids(x) + 1)
    assert function(ragged).tolist() == [2, 3, 3]
    assert ragged.monolith_fused_value_rowids is None
    assert function(Ragged.from_lists([[5, 6, 7, 8]])).tolist() == [1, 1, 1, 1]


def test_its_op_has_a_right_fake_kernel():
    op = torch.ops.monolith.fused_value_rowids.default
    torch.library.opcheck(op, (torch.tensor([0, 0, 1, 3]), 3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_an_accelerator_gives_the_same_row_ids():
    ragged = Ragged.from_lists([*ROWS, [], [4, 5]], device="cuda")
    assert fused_value_rowids(ragged).tolist() == fused_value_rowids(ragged.cpu()).tolist()
