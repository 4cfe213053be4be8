from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.ops import Ragged
from tests.native_training.ops.cases import refused

ROWS = [[7, 8], [], [9]]
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


@pytest.fixture
def ragged():
    return Ragged(tensor(7, 8, 9), tensor(0, 2, 2, 3))


# The two tensors.


def test_both_tensors_are_shared_not_copied():
    values, splits = tensor(7, 8, 9), tensor(0, 2, 2, 3)
    ragged = Ragged(values, splits)
    assert ragged.values is values
    assert ragged.row_splits.data_ptr() == splits.data_ptr()


def test_int32_splits_are_widened():
    assert Ragged(tensor(7), tensor(0, 1).int()).row_splits.dtype == torch.int64


def test_strided_splits_become_contiguous():
    splits = Ragged(tensor(7, 8), tensor(0, 9, 1, 9, 2, 9)[::2]).row_splits
    assert splits.is_contiguous()
    assert splits.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16, torch.bool])
def test_values_are_of_any_dtype(dtype):
    assert Ragged(torch.zeros(2, dtype=dtype), tensor(0, 2)).values.dtype == dtype


def test_a_field_cannot_be_set(ragged):
    with pytest.raises(FrozenInstanceError):
        ragged.values = tensor(1, 2, 3)


def test_another_attribute_cannot_be_added(ragged):
    assert not hasattr(ragged, "__dict__")


def test_rows_are_counted_with_the_empty_ones(ragged):
    assert ragged.num_rows == len(ragged) == 3


def test_no_rows_are_one_split():
    assert Ragged(tensor(), tensor(0)).to_lists() == []


def test_lengths_are_differences_of_splits(ragged):
    assert ragged.lengths.tolist() == [2, 0, 1]


def test_offsets_are_a_view_of_the_splits(ragged):
    assert ragged.offsets.tolist() == [0, 2, 2]
    assert ragged.offsets.data_ptr() == ragged.row_splits.data_ptr()


def test_repr_shows_both_tensors(ragged):
    assert repr(ragged) == ("Ragged(values=tensor([7, 8, 9]), row_splits=tensor([0, 2, 2, 3]))")


def test_meta_tensors_are_checked_by_shape_only():
    ragged = Ragged(torch.empty(3, device="meta"), tensor(5, 5).to("meta"))
    assert ragged.num_rows == 1


# What the constructor refuses.


@pytest.mark.parametrize(
    ("splits", "text"),
    [
        (tensor(1, 3), "[Ragged] expected row_splits that begin with 0, got 1"),
        (
            tensor(0, 3, 2, 3),
            "[Ragged] expected row_splits that never decrease, got 3 before 2 at index 1",
        ),
        (
            tensor(0, 2),
            "[Ragged] expected row_splits that end with 3, the number of values, got 2",
        ),
        (
            tensor(0, 4),
            "[Ragged] expected row_splits that end with 3, the number of values, got 4",
        ),
        (tensor(), "[Ragged] expected row_splits with at least 1 entry, got 0; no rows are [0]"),
        (
            tensor(0, 3).reshape(1, 2),
            "[Ragged] expected row_splits with 1 dimension, got shape (1, 2)",
        ),
        (
            tensor(0, 3).to("meta"),
            "[Ragged] expected row_splits on device cpu, that of values, got meta; "
            "move with .to('cpu')",
        ),
        (
            tensor(0, 3).to_sparse(),
            "[Ragged] expected row_splits as a dense tensor, got layout sparse_coo",
        ),
    ],
)
def test_wrong_splits_are_refused(splits, text):
    refused(ValueError, text, Ragged, tensor(7, 8, 9), splits)


@pytest.mark.parametrize("dtype", ["float32", "int16", "uint8", "bool"])
def test_splits_of_another_dtype_are_refused(dtype):
    text = f"[Ragged] expected row_splits of dtype int64 or int32, got {dtype}; cast with .long()"
    refused(TypeError, text, Ragged, tensor(7), tensor(0, 1).to(getattr(torch, dtype)))


def test_splits_that_are_no_tensor_are_refused():
    text = "[Ragged] expected row_splits as a torch.Tensor, got list"
    refused(TypeError, text, Ragged, tensor(7), [0, 1])


def test_values_that_are_no_tensor_are_refused():
    text = "[Ragged] expected values as a torch.Tensor, got list"
    refused(TypeError, text, Ragged, [7], tensor(0, 1))


def test_a_scalar_of_values_is_refused():
    text = "[Ragged] expected values with at least 1 dimension, got shape ()"
    refused(ValueError, text, Ragged, torch.tensor(7), tensor(0, 1))


def test_nested_values_are_refused(ragged):
    text = "[Ragged] expected values as a dense tensor, got layout nested"
    refused(ValueError, text, Ragged, ragged.to_nested(), tensor(0, 3))


# Python lists.


@given(rows=st.lists(st.lists(INT64, max_size=4), max_size=8))
def test_it_is_what_its_lists_are(rows):
    ragged = Ragged.from_lists(rows)
    assert ragged.to_lists() == rows
    assert ragged.num_rows == len(rows)
    assert ragged.lengths.tolist() == [len(row) for row in rows]
    assert ragged.values.tolist() == [value for row in rows for value in row]
    assert Ragged(ragged.values, ragged.row_splits).to_lists() == rows


@given(rows=st.lists(st.lists(INT64, max_size=4), max_size=8))
def test_every_other_form_has_the_same_rows(rows):
    ragged = Ragged.from_lists(rows)
    values = ragged.values
    assert Ragged.from_lengths(values, ragged.lengths).to_lists() == rows
    assert Ragged.from_nested(ragged.to_nested()).to_lists() == rows
    assert Ragged.from_offsets(values, ragged.row_splits, include_last=True).to_lists() == rows
    assert Ragged.from_offsets(values, ragged.offsets).to_lists() == rows


def test_values_may_have_more_dimensions():
    rows = [[[1, 2]], [], [[3, 4], [5, 6]]]
    ragged = Ragged.from_lists(rows)
    assert ragged.values.shape == (3, 2)
    assert ragged.to_lists() == rows


def test_lists_give_values_of_the_dtype_that_is_asked_for():
    assert Ragged.from_lists([[1.5], [2]], dtype=torch.float64).values.tolist() == [1.5, 2.0]


def test_lists_go_to_the_device_that_is_asked_for():
    ragged = Ragged.from_lists(ROWS, device="meta")
    assert ragged.values.is_meta
    assert ragged.row_splits.is_meta


def test_lists_of_floats_are_not_cut_to_integers():
    text = (
        "[Ragged.from_lists] expected values of dtype int64, got float32; pass dtype=torch.float32"
    )
    refused(TypeError, text, Ragged.from_lists, [[1], [1.5]])


def test_a_row_that_is_no_list_is_refused():
    text = "[Ragged.from_lists] expected row 1 as a list, got int"
    refused(TypeError, text, Ragged.from_lists, [[7], 8])


# Offsets and lengths.


@pytest.mark.parametrize("include_last", [False, True])
def test_offsets_mean_what_they_mean_to_the_embedding_bag_of_torch(include_last):
    bag = torch.nn.EmbeddingBag(10, 1, mode="sum", include_last_offset=include_last)
    bag.weight.data = torch.arange(10.0).reshape(10, 1)
    offsets = tensor(0, 2, 2, 3) if include_last else tensor(0, 2, 2)
    ragged = Ragged.from_offsets(tensor(7, 8, 9), offsets, include_last=include_last)
    pooled = bag(tensor(7, 8, 9), offsets).flatten().tolist()
    assert pooled == [sum(row) for row in ragged.to_lists()]


def test_no_offsets_are_no_rows():
    assert Ragged.from_offsets(tensor(), tensor()).to_lists() == []


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        (tensor(1), "that begin with 0, got 1"),
        (tensor(), "that begin with 0, got 3"),
        (tensor(0, 2, 1), "that never decrease, got 2 before 1 at index 1"),
        (tensor(0, 4), "that never decrease, got 4 before 3 at index 1"),
    ],
)
def test_wrong_offsets_are_refused(offsets, text):
    text = f"[Ragged.from_offsets] expected offsets and the number of values {text}"
    refused(ValueError, text, Ragged.from_offsets, tensor(7, 8, 9), offsets)


def test_a_last_offset_that_is_not_the_number_of_values_is_refused():
    text = "[Ragged.from_offsets] expected offsets that end with 3, the number of values, got 2"
    build = Ragged.from_offsets
    refused(ValueError, text, build, tensor(7, 8, 9), tensor(0, 2), include_last=True)


def test_offsets_of_another_dtype_are_refused():
    text = (
        "[Ragged.from_offsets] expected offsets of dtype int64 or int32, got float32; "
        "cast with .long()"
    )
    refused(TypeError, text, Ragged.from_offsets, tensor(7), tensor(0).float())


def test_int32_lengths_are_widened():
    ragged = Ragged.from_lengths(tensor(7, 8, 9), tensor(2, 0, 1).int())
    assert ragged.row_splits.dtype == torch.int64
    assert ragged.to_lists() == ROWS


@pytest.mark.parametrize(
    ("lengths", "text"),
    [
        (tensor(2, -1, 2), "that never decrease, got 2 before 1 at index 1"),
        (tensor(2), "that end with 3, the number of values, got 2"),
    ],
)
def test_wrong_lengths_are_refused(lengths, text):
    text = f"[Ragged.from_lengths] expected running sums of lengths {text}"
    refused(ValueError, text, Ragged.from_lengths, tensor(7, 8, 9), lengths)


# Nested tensors.


def test_a_nested_tensor_shares_both_tensors(ragged):
    nested = ragged.to_nested()
    assert nested.layout == torch.jagged
    assert nested.values().data_ptr() == ragged.values.data_ptr()
    assert Ragged.from_nested(nested).row_splits.data_ptr() == ragged.row_splits.data_ptr()


def test_gradients_pass_through_a_nested_tensor():
    values = torch.ones(3, 2, requires_grad=True)
    back = Ragged.from_nested(Ragged(values, tensor(0, 2, 2, 3)).to_nested())
    (back.values * torch.arange(6.0).reshape(3, 2)).sum().backward()
    assert values.grad.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_gaps_of_a_nested_tensor_are_closed():
    dense = torch.arange(8).reshape(2, 4)
    nested = torch.nested.narrow(dense, 1, tensor(0, 1), tensor(1, 2), layout=torch.jagged)
    assert Ragged.from_nested(nested).to_lists() == [[0], [5, 6]]


def test_a_dense_tensor_is_no_nested_one():
    text = (
        "[Ragged.from_nested] expected a nested tensor of layout jagged, got layout strided; "
        "make it with torch.nested and layout=torch.jagged"
    )
    refused(ValueError, text, Ragged.from_nested, tensor(7))


def test_a_list_is_no_nested_tensor():
    text = "[Ragged.from_nested] expected a nested tensor, got list"
    refused(TypeError, text, Ragged.from_nested, ROWS)


def test_a_transposed_nested_tensor_is_refused():
    nested = Ragged(torch.ones(3, 2), tensor(0, 2, 3)).to_nested().transpose(1, 2)
    with pytest.raises(ValueError, match=r"differ in dimension 1, got shape \(2, 2, j\d+\)"):
        Ragged.from_nested(nested)


def test_wrong_offsets_of_a_nested_tensor_are_refused():
    nested = torch.nested.nested_tensor_from_jagged(tensor(7, 8, 9), tensor(0, 2))
    text = "[Ragged.from_nested] expected offsets that end with 3, the number of values, got 2"
    refused(ValueError, text, Ragged.from_nested, nested)


# Devices.


def test_both_tensors_move_to_a_device(ragged):
    moved = ragged.to("meta")
    assert moved.values.is_meta
    assert moved.row_splits.is_meta


def test_a_move_to_its_own_device_gives_the_same_object(ragged):
    assert ragged.to("cpu") is ragged.cpu() is ragged


def test_its_device_is_that_of_both_tensors(ragged):
    assert ragged.device == torch.device("cpu")
    assert ragged.to("meta").device == torch.device("meta")


def test_a_move_need_not_wait(ragged, monkeypatch):
    options = []
    move = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *a, **k: options.append(k) or move(self, *a, **k)
    )
    ragged.to("meta", non_blocking=True)
    assert options == [{"non_blocking": True}] * 2


@pytest.mark.parametrize("pinned", [[True, True], [True, False], [False, True]])
def test_it_is_pinned_if_both_tensors_are(ragged, monkeypatch, pinned):
    answers = {id(ragged.values): pinned[0], id(ragged.row_splits): pinned[1]}
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: answers[id(self)])
    assert ragged.is_pinned() == all(pinned)
