import pytest
import torch

from monolith.native_training.ops.graph_ops import graph_check, graph_op, unknown_size


@graph_op(
    "test_positive(Tensor numbers, *, int plus=0) -> Tensor",
    lambda numbers, plus=0: numbers.new_empty(unknown_size()),
)
def positive(numbers: torch.Tensor, *, plus: int = 0) -> torch.Tensor:
    """Its own words."""
    if bool((numbers == 0).any()):
        raise ValueError("[positive] expected no 0")
    return numbers[numbers > 0] + plus


def test_a_function_stays_what_it_was_in_eager_mode():
    assert positive(torch.tensor([-1, 2]), plus=1).tolist() == [3]
    assert positive.__doc__ == "Its own words."


def test_a_compiled_function_has_sizes_that_data_tell(compiled):
    function = compiled(lambda numbers: positive(numbers * 2, plus=3).cumsum(0))
    assert function(torch.tensor([1, -1, 2])).tolist() == [5, 12]
    assert function(torch.tensor([-1, -1, -1])).tolist() == []


def test_a_compiled_function_refuses_data_when_it_runs(compiled):
    function = compiled(lambda numbers: positive(numbers))
    function(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"^\[positive\] expected no 0$"):
        function(torch.tensor([1, 0]))


def test_an_exported_program_runs_it():
    class Positive(torch.nn.Module):
        def forward(self, numbers):
            return positive(numbers)

    program = torch.export.export(Positive(), (torch.tensor([1, -1, 2]),))
    assert program.module()(torch.tensor([-1, 5, -1])).tolist() == [5]


@graph_check("test_ascending(str name, Tensor numbers) -> Tensor")
def ascending(name: str, numbers: torch.Tensor) -> torch.Tensor:
    if bool((numbers.diff() < 0).any()):
        raise ValueError(f"[ascending] expected {name} that ascend")
    return numbers


def test_a_check_returns_its_tensor_in_eager_mode():
    numbers = torch.arange(4)
    assert ascending("numbers", numbers) is numbers


def test_a_compiled_function_checks_data_with_gaps_in_memory(compiled):
    function = compiled(lambda numbers: ascending("numbers", numbers).view(-1) + 1)
    assert function(torch.arange(6).view(3, 2)[:, 1]).tolist() == [2, 4, 6]
    with pytest.raises(ValueError, match=r"^\[ascending\] expected numbers that ascend$"):
        function(-torch.arange(6).view(3, 2)[:, 1])
