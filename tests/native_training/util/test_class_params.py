import pytest
import torch

from monolith.native_training.util import class_params
from monolith.native_training.util.class_params import params, with_params
from monolith.native_training.util.instantiable_params import ALLOWED_KWARGS, InstantiableParams
from monolith.native_training.util.params import Params
from monolith.train.driver import Run


@pytest.fixture(autouse=True)
def names():
    with Run().as_current():
        yield


@with_params
class Base:
    def __init__(self, units, rate=0.1, name="base", *args, **kwargs):
        self.got = (units, rate)


@with_params
class SubLayer(Base):
    def __init__(self, units=8, rate=None, depth=2, camelCase=1, **kwargs):  # noqa: N803
        super().__init__(units, rate)


@pytest.mark.req("NT-UTIL-T7")
def test_defaults_of_a_class_and_its_base_are_merged():
    made = SubLayer.params()
    assert (made.cls, made.units, made.rate, made.depth) == (SubLayer, 8, None, 2)
    assert (Base.params().units, Base.params().rate) == (None, 0.1)


@pytest.mark.req("NT-UTIL-T7")
def test_a_base_gives_what_its_subclass_does_not_name():
    class Other(Base):
        def __init__(self, rate=0.5):
            super().__init__(3, rate)

    made = params(Other)
    assert (made.units, made.rate, made.instantiate().got) == (None, 0.5, (3, 0.5))


@pytest.mark.req("NT-UTIL-T7")
def test_each_call_takes_a_name_of_its_own():
    found = [SubLayer.params().name, SubLayer.params().name, Base.params().name]
    assert found == ["sub_layer", "sub_layer_1", "base"]


@pytest.mark.req("NT-UTIL-T7")
def test_the_allowed_arguments_are_defined():
    made = SubLayer.params()
    assert set(made) == {*ALLOWED_KWARGS, "cls", "units", "rate", "depth"}
    assert {made[name] for name in ALLOWED_KWARGS - {"name"}} == {None}


def test_a_class_inherits_params_of_its_decorated_base():
    class Plain(Base):
        pass

    made = Plain.params()
    assert (made.cls, made.name) == (Plain, "plain")


def test_the_parameters_of_a_base_are_the_start():
    class Task:
        @classmethod
        def params(cls):
            made = InstantiableParams(cls)
            inner = Params()
            inner.define("rate", 0.1, "")
            inner.define("depth", 3, "")
            made.define("train", inner, "")
            made.define("seed", 7, "")
            return made

    class Model(Task):
        def __init__(self, rate=0.5, depth=None, seed=8, width=16): ...

    made = params(Model)
    assert (made.train.rate, made.train.depth, made.seed, made.width) == (0.5, None, 8, 16)
    assert "rate" not in made


def test_an_argument_without_a_default_leaves_what_is_there():
    class Task:
        @classmethod
        def params(cls):
            made = InstantiableParams(cls)
            made.define("seed", 7, "")
            return made

    class Model(Task):
        def __init__(self, seed): ...

    assert params(Model).seed == 7


def test_a_change_of_a_list_leaves_the_default_of_the_constructor():
    class Deep:
        def __init__(self, sizes=[8, 4]): ...  # noqa: B006

    params(Deep).sizes.append(2)
    assert params(Deep).sizes == [8, 4]


def test_a_module_of_torch_is_made_from_its_arguments():
    made = params(torch.nn.Linear).set(in_features=2, out_features=3)
    assert (made.name, made.bias) == ("linear", True)
    assert made.instantiate().weight.shape == (3, 2)


def test_variable_arguments_and_self_are_none():
    assert list(class_params._get_parameters(Base)) == ["units", "rate", "name"]
    assert class_params._get_parameters(type("Empty", (Base,), {})) == {}


def test_a_constructor_that_does_not_tell_has_no_arguments():
    class Silent:
        __init__ = dict.update  # written in C, without a signature

    assert class_params._get_parameters(Silent) == {}


def test_arguments_of_bases_come_first():
    found = class_params._get_all_parameters(SubLayer)
    assert list(found) == ["units", "rate", "name", "depth", "camelCase"]
    assert found["rate"].default is None


def test_the_index_leads_to_the_outermost_holder():
    outer, inner = Params(), Params()
    for name in ("a", "b"):
        inner.define(name, 1, "")
    outer.define("inner", inner, "")
    outer.define("a", 2, "")
    index = class_params._inverted_index(outer)
    assert set(index) == {"a", "b", "inner"}
    assert (index["a"] is outer, index["b"] is inner, index["inner"] is outer) == (True,) * 3
