"""What constructors and groups of the dense optimizers refuse."""

import pytest
import torch

from monolith.optim import AdamomOptimizer, DenseOptimizer, RmspropOptimizer, ShampooOptimizer

ALL = (AdamomOptimizer, RmspropOptimizer, ShampooOptimizer)
every_class = pytest.mark.parametrize("cls", ALL)


def weight():
    made = torch.nn.Parameter(torch.ones(1))
    made.grad = torch.ones(1)
    return made


@pytest.mark.parametrize(
    ("cls", "options", "text"),
    [
        (AdamomOptimizer, {"learning_rate": -1}, "learning_rate in [0, 1e+38], got -1"),
        (AdamomOptimizer, {"mom_decay": 1.5}, "mom_decay in [0, 1], got 1.5"),
        (AdamomOptimizer, {"epsilon": 0}, "epsilon in [1.17549e-38, 1e+38], got 0"),
        (RmspropOptimizer, {"beta2": -0.1}, "beta2 in [0, 1], got -0.1"),
        (ShampooOptimizer, {"beta_1": float("nan")}, "beta_1 in [0, 1], got nan"),
        (ShampooOptimizer, {"tau_1": 0}, "tau_1 >= 1, got 0"),
        (
            ShampooOptimizer,
            {"eigen_head": 0, "eigen_tail": 0},
            "eigen_head + eigen_tail >= 1, got 0",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(cls, options, text):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        cls([weight()], **options)
    assert str(caught.value) == f"[{cls.__name__}] expected {text}"


@pytest.mark.parametrize(
    ("cls", "options", "text"),
    [
        (AdamomOptimizer, {"learning_rate": "x"}, "learning_rate as a number, got 'x'"),
        (AdamomOptimizer, {"name": 1}, "name as str, got 1"),
        (AdamomOptimizer, {"use_locking": 1}, "use_locking as bool, got 1"),
        (RmspropOptimizer, {"use_v2": 1}, "use_v2 as bool, got 1"),
        (ShampooOptimizer, {"warmup": 1.5}, "warmup as an integer, got 1.5"),
        (ShampooOptimizer, {"global_step": 3}, "global_step as a function, got 3"),
    ],
)
def test_other_types_are_refused(cls, options, text):
    with pytest.raises(TypeError) as caught:
        cls([weight()], **options)
    assert str(caught.value) == f"[{cls.__name__}] expected {text}"


@pytest.mark.req("NT-RMSP-T2")
@every_class
def test_a_parameter_that_cannot_be_updated_is_refused_by_name(cls):
    leaf = weight()
    with torch.inference_mode():
        frozen = torch.ones(2)
    for params, name, why in (
        ([leaf, leaf * 2], "number 1", "no leaf"),
        ([("head", leaf * 2)], "head", "no leaf"),
        ([frozen], "number 0", "an inference tensor"),
    ):
        text = rf"^\[{cls.__name__}\] expected .*, got parameter {name}, which is {why};"
        with pytest.raises(NotImplementedError, match=text):
            cls(params)


def test_a_single_tensor_of_a_group_is_checked_too():
    with pytest.raises(NotImplementedError, match="got parameter number 0, which is no leaf"):
        AdamomOptimizer([{"params": weight() * 2}])


def test_complex_parameters_are_refused():
    with pytest.raises(TypeError, match=r"got parameter number 0 of dtype torch\.complex64"):
        AdamomOptimizer([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))])


def test_what_is_no_parameter_is_refused_by_torch():
    with pytest.raises(TypeError, match="optimizer can only optimize Tensors"):
        AdamomOptimizer([1])
    with pytest.raises(TypeError, match="a parameter group as dict, got 1"):
        AdamomOptimizer([weight()]).add_param_group(1)
    with pytest.raises(TypeError, match="ordering"):
        AdamomOptimizer([{"params": {weight()}}])


def test_the_base_has_no_rule():
    class Nothing(DenseOptimizer):
        ranges = {}

    with pytest.raises(NotImplementedError):
        Nothing([weight()], {"lr": 0.1}, name="Nothing", use_locking=False).step()
