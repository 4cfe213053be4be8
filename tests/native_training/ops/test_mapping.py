import pytest
import torch

from monolith.errors import InvalidArgumentError
from monolith.native_training.ops import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
    gather_embeddings_by_input,
    gather_embeddings_by_input_gradient_back_prop,
    map_id_to_embedding,
    map_id_to_embedding_gradient_back_prop,
)

IDS = [torch.tensor([1]), torch.tensor([2])]


def twice(*values):
    """Each value in two columns."""
    return torch.tensor(values, dtype=torch.float32)[:, None].repeat(1, 2)


def test_every_id_gets_its_row():
    found = map_id_to_embedding(IDS, [twice(1), twice(2)], torch.tensor([[1], [2]]))
    assert found.tolist() == [[[1, 1]], [[2, 2]]]


def test_the_gradient_of_a_row_counts_its_uses():
    rows = [twice(1).requires_grad_(), twice(2).requires_grad_()]
    wanted = torch.tensor([1, 1, 2])
    (-map_id_to_embedding(IDS, rows, wanted)).sum().backward()
    assert [part.grad.tolist() for part in rows] == [[[-2, -2]], [[-1, -1]]]
    found = map_id_to_embedding_gradient_back_prop(IDS, wanted, -torch.ones(3, 2))
    assert [part.tolist() for part in found] == [[[-2, -2]], [[-1, -1]]]


def test_of_an_id_that_occurs_twice_the_first_row_counts():
    ids = [torch.tensor([1, 1]), torch.tensor([1])]
    found = map_id_to_embedding(ids, [twice(5, 6), twice(7)], torch.tensor([1]))
    assert found.tolist() == [[5, 5]]


def test_an_unknown_id_is_refused():
    with pytest.raises(InvalidArgumentError, match="in the lists, got 3, and 1 more that are not"):
        map_id_to_embedding(IDS, [twice(1), twice(2)], torch.tensor([1, 3, 4]))


def test_gathered_rows_come_with_their_places():
    rows, places = gather_embeddings_by_input(
        torch.tensor([1, 2, 3]), twice(1, 2, 3), torch.tensor([[2], [1], [2]])
    )
    assert rows.tolist() == [[[2, 2]], [[1, 1]], [[2, 2]]]
    assert places.tolist() == [[1], [0], [1]]


def test_gradients_of_gathered_rows_go_back():
    rows = twice(1, 2, 3).requires_grad_()
    found, _ = gather_embeddings_by_input(
        torch.tensor([1, 2, 3]), rows, torch.tensor([[1], [2], [1]])
    )
    (-found).sum().backward()
    assert rows.grad.tolist() == [[-2, -2], [-1, -1], [0, 0]]


def test_the_back_prop_of_a_gather_adds_rows_up():
    found = gather_embeddings_by_input_gradient_back_prop(
        torch.tensor([2, 3, 1]), twice(1, 2, 4, 8), torch.tensor([1, 0, 1, 2])
    )
    assert found.tolist() == [[2, 2], [5, 5], [8, 8]]


ROWS = ((1, 3), (2, 2), (3, 3), (4, 3), (5, 2), (6, 3), (7, 2), (8, 2), (9, 2))  # number, width
FUSED = torch.tensor([number + 0.1 * (c + 1) for number, width in ROWS for c in range(width)])
OFFSETS = [
    torch.tensor([13, 0, 5, 13, 8, 13], dtype=torch.int32),
    torch.tensor([16, 18, 11, 11, 16, 20, 3], dtype=torch.int32),
]


def test_rows_of_two_widths_are_gathered_from_one_tensor():
    found = fused_gather_embeddings_by_input(FUSED, OFFSETS, [3, 2])
    assert [part[:, 0].round(decimals=1).tolist() for part in found] == [
        pytest.approx([6.1, 1.1, 3.1, 6.1, 4.1, 6.1]),
        pytest.approx([7.1, 8.1, 5.1, 5.1, 7.1, 9.1, 2.1]),
    ]
    assert [tuple(part.shape) for part in found] == [(6, 3), (7, 2)]


_TEXT = """2.1 2.2 2.3 7.4 7.5 3.1 3.2 3.3 5.1 5.2 5.3
7.8 8.0 11.3 11.6 11.9 6.8 7.0 2.4 2.5 6.4 6.5"""
EXPECTED = torch.tensor([float(number) for number in _TEXT.split()])
GRADIENTS = [
    torch.arange(1.0, 7)[:, None] + torch.tensor([0.1, 0.2, 0.3]),
    torch.arange(1.0, 8)[:, None] + torch.tensor([0.4, 0.5]),
]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_gradients_are_added_up_in_one_tensor(scale):
    found = fused_gather_embeddings_by_input_gradient(22, GRADIENTS, OFFSETS, [3, 2], scale=scale)
    torch.testing.assert_close(found, EXPECTED * scale)


def test_autograd_finds_the_same_gradient():
    fused = FUSED.clone().requires_grad_()
    torch.autograd.backward(fused_gather_embeddings_by_input(fused, OFFSETS, [3, 2]), GRADIENTS)
    torch.testing.assert_close(fused.grad, EXPECTED)


ONE = torch.ones(1, dtype=torch.int64)
gather_back = gather_embeddings_by_input_gradient_back_prop


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: map_id_to_embedding([], [], ONE), "at least 1 list of ids, got 0 lists"),
        (lambda: map_id_to_embedding([ONE], [], ONE), "got 1 lists and 0 tensors"),
        (
            lambda: map_id_to_embedding([ONE], [twice(1, 2)], ONE),
            "expected 1 rows in embeddings.0.",
        ),
        (lambda: map_id_to_embedding([ONE], [ONE], ONE), "with 2 dimensions, got shape"),
        (
            lambda: map_id_to_embedding_gradient_back_prop([ONE], ONE, twice(1, 2)),
            r"gradients of shape \(1, dim\), got 1 lists and shape \(2, 2\)",
        ),
        (
            lambda: gather_embeddings_by_input(ONE, twice(1, 2), ONE),
            "expected 1 rows in embeddings",
        ),
        (lambda: gather_back(ONE, twice(1, 2), ONE), "expected one gradient for each place"),
        (lambda: gather_back(ONE, twice(1), ONE), r"expected places in \[0, 1\), got 1 to 1"),
        (
            lambda: fused_gather_embeddings_by_input(FUSED, [ONE], []),
            "expected 1 dims of at least 1",
        ),
        (lambda: fused_gather_embeddings_by_input(FUSED, [ONE], [99]), r"places in \[0, 22\)"),
        (
            lambda: fused_gather_embeddings_by_input_gradient(2, [twice(1)], [ONE], [1]),
            r"gradients of shapes \[\(1, 1\)\], got \[\(1, 2\)\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_no_ids_are_no_rows():
    ids, rows = torch.empty(0, dtype=torch.int64), torch.empty(0, 3)
    assert map_id_to_embedding([ids], [rows], ids).shape == (0, 3)
    assert gather_embeddings_by_input(ids, rows, ids)[0].shape == (0, 3)
