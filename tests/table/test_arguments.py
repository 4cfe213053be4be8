"""Constructors refuse arguments of a wrong type by name."""

# mypy: disable-error-code="arg-type, dict-item, list-item"

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from monolith.table import Constant, Rows, Segment, TableConfig, Uniform
from monolith.table.arguments import as_integer, as_list, check_number
from monolith.table.optimizers import OPTIMIZERS, SGD, Adagrad, Adam, Momentum, PolynomialDecay

ONE = torch.tensor([1])


class Mine(Adagrad):
    """A subclass: no update rule goes by its name."""


INITIALIZER = "[Segment] expected initializer as Zeros, Constant, Uniform or Normal, got "

CASES: dict[str, Callable[[], Any]] = {
    "[Segment] expected dim as an integer, got '16'": lambda: Segment("16"),
    "[Segment] expected dim as an integer, got 2.5": lambda: Segment(2.5),
    "[Segment] expected a sparse optimizer, got 'adagrad'": lambda: Segment(2, "adagrad"),
    f"[Segment] expected a sparse optimizer, got {Adagrad}": lambda: Segment(2, Adagrad),
    f"{INITIALIZER}{Uniform}": lambda: Segment(3, SGD(), Uniform),
    f"{INITIALIZER}0.5": lambda: Segment(3, SGD(), 0.5),
    "[Segment] expected name as a str or None, got 5": lambda: Segment(2, name=5),
    "[TableConfig] expected name as a str, got 5": lambda: TableConfig(5, Segment(2)),
    "[TableConfig] expected segments as a sequence, got 16 (table 'u')": (
        lambda: TableConfig("u", 16)
    ),
    "[TableConfig] expected a Segment, got 16 (table 'u')": lambda: TableConfig("u", [16]),
    "[TableConfig] expected seed as an integer, got 1.5": (
        lambda: TableConfig("u", Segment(2), seed=1.5)
    ),
    "[TableConfig] expected clip_value as a number, got 'x'": (
        lambda: TableConfig("u", Segment(2), non_finite="clip", clip_value="x")
    ),
    "[Adagrad] expected learning_rate as a number, got 'x'": lambda: Adagrad("x"),
    "[Adam] expected beta1 as a number, got '0.9'": lambda: Adam(beta1="0.9"),
    "[Momentum] expected momentum as a number, got [1]": lambda: Momentum(momentum=[1]),
    "[Constant] expected value as a number, got None": lambda: Constant(None),
    "[Uniform] expected minval as a number, got 'a'": lambda: Uniform("a", 1),
    "[PolynomialDecay] expected end_learning_rate as a number, got 'x'": (
        lambda: PolynomialDecay(0.1, 10, "x")
    ),
    "[PolynomialDecay] expected decay_steps as an integer, got 1.5": (
        lambda: PolynomialDecay(0.1, 1.5)
    ),
    "[PolynomialDecay] expected power as a number, got 'x'": (
        lambda: PolynomialDecay(0.1, 10, power="x")
    ),
    "[Rows] expected keys as a torch.Tensor, got list": lambda: Rows([1], [1], {}),
    "[Rows] expected times as a torch.Tensor, got list": lambda: Rows(ONE, [1], {}),
    "[Rows] expected weight/0 as a torch.Tensor, got list": (
        lambda: Rows(ONE, ONE, {"weight/0": [[1.0]]})
    ),
    "[Rows] expected columns as a dict, got list": lambda: Rows(ONE, ONE, []),
}


@pytest.mark.parametrize("text", CASES)
def test_constructors_name_what_they_refuse(text):
    with pytest.raises(TypeError) as caught:
        CASES[text]()
    assert str(caught.value) == text


def test_rows_refuse_a_scalar():
    with pytest.raises(ValueError, match=r"\[Rows\] expected a row per key in 'keys', got a sca"):
        Rows(torch.tensor(1), ONE, {})


def test_segment_refuses_a_subclass_of_an_optimizer():
    with pytest.raises(TypeError) as caught:
        Segment(2, Mine())
    assert str(caught.value) == (
        f"[Segment] expected a sparse optimizer of this package, got {Mine()!r}; "
        "a subclass has no update rule"
    )


def test_segment_takes_every_optimizer():
    for optimizer in OPTIMIZERS:
        assert Segment(1, optimizer()).optimizer == optimizer()


def test_integers_of_numpy_become_plain_ones():
    config = TableConfig("user", Segment(np.int64(2)), seed=np.uint64(3))
    assert config == TableConfig("user", Segment(2), seed=3)
    assert type(dataclasses.astuple(config)[2]) is type(config.dim) is int


@pytest.mark.parametrize("value", [1, True, np.int8(1), torch.tensor(1), torch.tensor([1])])
def test_integers(value):
    assert as_integer("[f]", "x", value) == 1


@pytest.mark.parametrize("value", [1.0, "1", None, torch.tensor(1.0), torch.tensor([1, 2])])
def test_what_is_no_integer(value):
    with pytest.raises(TypeError, match=r"^\[f\] expected x as an integer, got .* \(table 'u'\)$"):
        as_integer("[f]", "x", value, " (table 'u')")


@pytest.mark.parametrize("value", [1, 0.5, np.float32(1), torch.tensor(0.5), float("nan"), 10**400])
def test_numbers(value):
    check_number("[f]", "x", value)


@pytest.mark.parametrize("value", ["1", None, [1.0], torch.ones(2), 1j])
def test_what_is_no_number(value):
    with pytest.raises(TypeError, match=r"^\[f\] expected x as a number, got "):
        check_number("[f]", "x", value)


def test_lists():
    assert as_list("[f]", "x", iter((1, 2))) == [1, 2]
    with pytest.raises(TypeError, match=r"^\[f\] expected x as a sequence, got 0.1$"):
        as_list("[f]", "x", 0.1)
