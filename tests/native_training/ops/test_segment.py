import pytest
import torch

from monolith.native_training.ops import (
    first_n,
    fused_reduce_and_split,
    fused_reduce_sum_and_split,
    fused_sorted_segment_sum,
    reduce_mean,
    reduce_sqrtn,
    reduce_sum,
)

INDICES = torch.tensor([[0], [0], [1]])
LENGTH = torch.tensor([2])


def twice(*values):
    """Each value in two columns."""
    return torch.tensor(values, dtype=torch.float32)[:, None].repeat(1, 2)


@pytest.mark.parametrize(
    ("reduce", "values", "expected"),
    [
        (reduce_sum, (1, 2, 4), [3, 4]),
        (reduce_mean, (4, 2, 1), [3, 1]),
        (reduce_sqrtn, (3, 4, 4), [5, 4]),
    ],
)
def test_values_are_reduced_by_example(reduce, values, expected):
    assert torch.equal(reduce(INDICES, twice(*values), LENGTH), twice(*expected))


@pytest.mark.parametrize("reduce", [reduce_sum, reduce_mean, reduce_sqrtn])
def test_an_example_without_values_is_zero(reduce):
    values = twice(1, 2, 4).requires_grad_()
    found = reduce(INDICES, values, 3)
    assert found[2].tolist() == [0, 0]
    found.sum().backward()
    assert values.grad.isfinite().all()


def test_the_gradient_of_a_sum_is_gathered():
    values = twice(1, 2, 4).requires_grad_()
    reduce_sum(INDICES, values, LENGTH).backward(twice(5, 7))
    assert torch.equal(values.grad, twice(5, 5, 7))


def test_the_gradient_of_a_mean_is_divided():
    values = twice(1, 2).requires_grad_()
    (-2 * reduce_mean(torch.zeros(2, 1).long(), values, 1)).sum().backward()
    assert torch.equal(values.grad, twice(-1, -1))


def test_the_gradient_of_a_norm_is_the_share_of_it():
    values = torch.tensor([[3.0, 4.0], [4.0, 3.0]], requires_grad=True)
    (-reduce_sqrtn(torch.zeros(2, 1).long(), values, 1)).sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([[-0.6, -0.8], [-0.8, -0.6]]))


def test_the_gradient_of_a_norm_of_zeros_is_zero():
    values = torch.zeros(2, 2, requires_grad=True)
    reduce_sqrtn(torch.zeros(2, 1).long(), values, 1).sum().backward()
    assert values.grad.tolist() == [[0, 0], [0, 0]]


VALUES = torch.tensor([[1.0, 1, 1], [2, 2, 1], [4, 4, 2]])


@pytest.mark.parametrize(
    ("indices", "size", "dims", "expected"),
    [
        ([0, 0, 1], 2, [2, 1], [[[3, 3], [4, 4]], [[2], [2]]]),
        ([0, 0, 1], 2, [1, 2], [[[3], [4]], [[3, 2], [4, 2]]]),
        ([0, 0, 2], 4, [1, 2], [[[3], [0], [4], [0]], [[3, 2], [0, 0], [4, 2], [0, 0]]]),
    ],
)
def test_sums_are_cut_into_slices(indices, size, dims, expected):
    found = fused_reduce_sum_and_split(torch.tensor(indices), VALUES, size, dims)
    assert [part.tolist() for part in found] == expected


def test_the_gradient_of_cut_sums_is_that_of_the_sums():
    values = VALUES.clone().requires_grad_()
    parts = fused_reduce_sum_and_split(torch.tensor([0, 0, 1]), values, 2, [2, 1])
    sum(part.sum() for part in parts).backward()
    assert torch.equal(values.grad, torch.ones(3, 3))


def test_sorted_segments_are_summed():
    values = torch.tensor([[1.0, 1, 1, 1, 1], [2, 2, 1, 1, 1], [4, 4, 2, 2, 2], [4, 4, 2, 2, 2]])
    (found,) = fused_sorted_segment_sum([torch.tensor([0, 0, 2, 2])], [values], [(4, 5)])
    assert found.tolist() == [[3, 3, 2, 2, 2], [0] * 5, [8, 8, 4, 4, 4], [0] * 5]


def test_ragged_features_are_pooled_and_cut():
    splits = [torch.tensor([0, 2, 2]), torch.tensor([0, 0, 1])]
    rows = [torch.tensor([[1.0, 2], [3, 4]], requires_grad=True), torch.tensor([[5.0]])]
    found = fused_reduce_and_split(splits, rows, [[1, 1], [1]])
    assert [[part.tolist() for part in parts] for parts in found] == [
        [[[4], [0]], [[6], [0]]],
        [[[0], [5]]],
    ]
    found[0][1].sum().backward()
    assert rows[0].grad.tolist() == [[0, 1], [0, 1]]


def test_first_values_are_kept_and_padded():
    values = torch.arange(1.0, 7).requires_grad_()
    found = first_n(torch.tensor([0, 1, 3, 6]), values, 2)
    assert found.tolist() == [[1, 0], [2, 3], [4, 5]]
    found.sum().backward()
    assert values.grad.tolist() == [1, 1, 1, 1, 1, 0]


def test_a_compiled_function_pools():
    pool = torch.compile(reduce_mean, fullgraph=True, backend="aot_eager")
    assert torch.equal(pool(INDICES, twice(4, 2, 1), 2), twice(3, 1))
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: reduce_sum(INDICES, twice(1, 2), 2),
            r"id_values of shape \(n, dim\), got \(3, 1\)",
        ),
        (lambda: reduce_sum(INDICES, torch.ones(3), 2), r"got \(3, 1\) and \(3,\)"),
        (lambda: reduce_sum(INDICES.view(1, 3), twice(1), 2), r"got \(1, 3\) and \(1, 2\)"),
        (lambda: reduce_sum(INDICES, twice(1, 2, 3), 1), r"id_indices in \[0, 1\), got 0 to 1"),
        (lambda: reduce_sum(-INDICES, twice(1, 2, 3), 2), "got -1 to 0"),
        (
            lambda: fused_reduce_sum_and_split(INDICES, VALUES, 2, [1]),
            r"widths that sum up to 3, got \[1\]",
        ),
        (lambda: fused_sorted_segment_sum([INDICES], [], []), "got 1, 0 and 0"),
        (
            lambda: fused_sorted_segment_sum([INDICES.flip(0)], [VALUES], [(2, 3)]),
            r"indices that never decrease, got \[1, 0, 0\]",
        ),
        (
            lambda: fused_sorted_segment_sum([INDICES], [VALUES], [(2, 4)]),
            r"values of width \(4,\), got \(3,\)",
        ),
        (lambda: fused_reduce_and_split([LENGTH], [], []), "got 1, 0 and 0"),
        (
            lambda: fused_reduce_and_split(
                [torch.tensor([0, 3]), torch.tensor([0, 3, 3])], [VALUES] * 2, [[3]] * 2
            ),
            r"features of one number of rows, got \[2, 3\]",
        ),
        (lambda: first_n(torch.tensor([0, 2]), VALUES, 1), "row_splits that ascend from 0 to 3"),
        (lambda: first_n(torch.tensor([0, 3]), VALUES, -1), "length of at least 0, got -1"),
    ],
)
def test_what_does_not_fit_is_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()
