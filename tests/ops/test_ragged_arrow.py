import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.ops import Ragged
from tests.native_training.ops.cases import refused

ROWS = [[7, 8], [], [9]]


@given(rows=st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4), max_size=8))
def test_lists_go_to_arrow_and_back(rows):
    array = Ragged.from_lists(rows).to_arrow()
    assert array.to_pylist() == rows
    assert Ragged.from_arrow(array).to_lists() == rows


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_lists_of_both_offset_widths_are_read(kind):
    ragged = Ragged.from_arrow(pa.array(ROWS, kind(pa.int64())))
    assert ragged.to_lists() == ROWS
    assert ragged.row_splits.dtype == torch.int64


def test_lists_of_one_length_are_read():
    array = pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    ragged = Ragged.from_arrow(array)
    assert ragged.to_lists() == [[1, 2], [3, 4]]
    assert ragged.values.dtype == torch.int32


def test_a_slice_has_its_own_rows():
    assert Ragged.from_arrow(pa.array([[1], *ROWS, [2]]).slice(1, 3)).to_lists() == ROWS


def test_a_column_of_several_chunks_is_one():
    column = pa.chunked_array([pa.array(ROWS[:2], pa.list_(pa.int64())), pa.array(ROWS[2:])])
    assert Ragged.from_arrow(column).to_lists() == ROWS


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int16", "bool"])
def test_values_keep_their_dtype(dtype):
    ragged = Ragged(torch.tensor([1, 0]).to(getattr(torch, dtype)), torch.tensor([0, 2]))
    back = Ragged.from_arrow(ragged.to_arrow())
    assert back.values.dtype == ragged.values.dtype
    assert back.to_lists() == ragged.to_lists()


def test_values_are_shared_with_the_array_that_is_made():
    ragged = Ragged.from_lists(ROWS)
    array = ragged.to_arrow()
    ragged.values[0] = 5
    assert array.to_pylist() == [[5, 8], [], [9]]


def test_values_are_copied_from_an_array():
    numbers = np.array([7, 8, 9])
    array = pa.LargeListArray.from_arrays(pa.array([0, 3]), pa.array(numbers))
    Ragged.from_arrow(array).values[0] = 5
    assert numbers.tolist() == [7, 8, 9]


def test_values_that_train_go_to_arrow_too():
    values = torch.ones(2, requires_grad=True)
    assert Ragged(values, torch.tensor([0, 2])).to_arrow().to_pylist() == [[1.0, 1.0]]


def test_a_list_is_no_array():
    text = "[Ragged.from_arrow] expected a pyarrow array, got list"
    refused(TypeError, text, Ragged.from_arrow, ROWS)


def test_an_array_of_numbers_is_no_array_of_lists():
    text = "[Ragged.from_arrow] expected an array of lists, got type int64"
    refused(TypeError, text, Ragged.from_arrow, pa.array([7]))


def test_lists_of_strings_are_refused():
    text = "[Ragged.from_arrow] expected lists of numbers, got type list<item: string>"
    refused(TypeError, text, Ragged.from_arrow, pa.array([["a"]]))


def test_null_rows_are_refused():
    text = "[Ragged.from_arrow] expected no null rows, got 1; fill them with empty lists"
    refused(ValueError, text, Ragged.from_arrow, pa.array([[7], None]))


def test_null_values_are_refused():
    text = "[Ragged.from_arrow] expected no null values, got 1; drop them"
    refused(ValueError, text, Ragged.from_arrow, pa.array([[7, None]]))


def test_values_of_more_dimensions_are_refused():
    text = "[Ragged.to_arrow] expected values with 1 dimension, got shape (2, 3)"
    refused(ValueError, text, Ragged(torch.ones(2, 3), torch.tensor([0, 2])).to_arrow)


def test_values_on_another_device_are_refused():
    text = "[Ragged.to_arrow] expected values on device cpu, got meta; move with .cpu()"
    refused(ValueError, text, Ragged.from_lists(ROWS, device="meta").to_arrow)


def test_bfloat16_values_are_refused():
    ragged = Ragged(torch.ones(2, dtype=torch.bfloat16), torch.tensor([0, 2]))
    text = (
        "[Ragged.to_arrow] expected values of a dtype that Arrow has, got bfloat16; "
        "cast with .float()"
    )
    refused(TypeError, text, ragged.to_arrow)
