import pytest
import torch

from monolith.native_training.util.instantiable_params import ALLOWED_KWARGS, InstantiableParams
from monolith.native_training.util.params import Params


class Named:
    def __init__(self, a, b=2):
        self.got = (a, b)


class Open:
    def __init__(self, a, **kwargs):
        self.got = (a, kwargs)


class Configured:
    params = None

    def __init__(self, params):
        self.params = params


def params_of(cls, **values):
    made = InstantiableParams(cls)
    for name, value in values.items():
        made.define(name, value, "")
    return made


def test_a_constructor_gets_the_parameters_that_it_names():
    assert params_of(Named, a=1, b=5, c=7, name="x").instantiate().got == (1, 5)
    assert params_of(Named, a=1).instantiate().got == (1, 2)


def test_nested_parameters_are_passed_too_and_the_outermost_wins():
    inner = Params()
    inner.define("a", 1, "")
    inner.define("b", 3, "")
    assert params_of(Named, inner=inner, b=4).instantiate().got == (1, 4)


def test_nested_parameters_of_another_class_are_passed_too():
    inner = params_of(Open, a=1, b=3)
    assert params_of(Named, inner=inner).instantiate().got == (1, 3)


def test_open_constructors_also_get_the_allowed_arguments_that_are_set():
    made = params_of(Open, a=1, c=2, **dict.fromkeys(ALLOWED_KWARGS))
    made.set(name="x", input_dim=3)
    assert made.instantiate().got == (1, {"name": "x", "input_dim": 3})


def test_a_constructor_of_params_gets_them_as_they_are():
    made = params_of(Configured, a=1)
    assert made.instantiate().params is made


def test_a_class_without_params_gets_the_parameter_of_that_name():
    class Plain:
        def __init__(self, params):
            self.got = params

    assert params_of(Plain, params=7).instantiate().got == 7


@pytest.mark.parametrize("base", [object, torch.nn.Module])
def test_a_class_without_a_constructor_gets_nothing(base):
    made = params_of(type("Empty", (base,), {}), name="x").instantiate()
    assert isinstance(made, base)


def test_a_module_gets_nothing_also_after_torch_compile_has_wrapped_its_constructor(monkeypatch):
    original = torch.nn.Module.__init__

    def wrapped(self, *args, **kwargs):
        original(self, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "__init__", wrapped)
    made = params_of(type("Empty", (torch.nn.Module,), {}), name="x").instantiate()
    assert isinstance(made, torch.nn.Module)


@pytest.mark.parametrize("cls", [None, "Named"])
def test_without_a_class_nothing_can_be_made(cls):
    with pytest.raises(TypeError, match=rf"expected a class as cls, got {cls!r}$"):
        InstantiableParams(cls).instantiate()


def test_a_copy_makes_the_same():
    made = params_of(Named, a=1).copy()
    assert type(made) is InstantiableParams
    assert made.instantiate().got == (1, 2)
