import pytest
import torch

from monolith.native_training.ops.graph_ops import cut_rows

WHAT = "[here] expected {} rows"


def test_parts_are_views_one_after_another():
    rows = torch.arange(6).view(3, 2)
    first, second = cut_rows(rows, torch.tensor([1, 2]), 2, WHAT)
    assert (first.tolist(), second.tolist()) == ([[0, 1]], [[2, 3], [4, 5]])
    assert second.data_ptr() == rows[1:].data_ptr()


def test_sizes_that_do_not_sum_up_are_refused():
    with pytest.raises(ValueError, match=r"\[here\] expected 4 rows, got 3"):
        cut_rows(torch.arange(3), torch.tensor([4]), 1, WHAT)


def test_a_compiled_function_cuts_and_differentiates(compiled):
    function = compiled(lambda rows, sizes: cut_rows(rows, sizes, 3, WHAT)[2] * 2)
    for sizes in ([1, 0, 2], [0, 1, 4]):
        rows = torch.arange(float(sum(sizes)), requires_grad=True)
        part = function(rows, torch.tensor(sizes))
        assert part.tolist() == (rows[-sizes[2] :] * 2).tolist()
        part.sum().backward()
        assert rows.grad.tolist() == [0] * sum(sizes[:2]) + [2] * sizes[2]


def test_a_compiled_function_of_one_part_copies_its_gradient(compiled):
    rows = torch.ones(3, requires_grad=True)
    function = compiled(lambda rows, sizes: cut_rows(rows, sizes, 1, WHAT)[0])
    function(rows, torch.tensor([3])).sum().backward()
    assert rows.grad.tolist() == [1, 1, 1]


def test_a_compiled_function_refuses_sizes_when_it_runs(compiled):
    function = compiled(lambda rows, sizes: cut_rows(rows, sizes, 1, WHAT)[0] + 1)
    assert function(torch.arange(3), torch.tensor([3])).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match=r"\[here\] expected 4 rows, got 3"):
        function(torch.arange(3), torch.tensor([4]))
