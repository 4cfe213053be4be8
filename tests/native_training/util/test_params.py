import copy
import enum
import pickle

import numpy as np
import pytest
import torch

from monolith.native_training.util.params import Params, copy_params_to, update_params


def params(**values):
    made = Params()
    for name, value in values.items():
        made.define(name, value, f"About {name}.")
    return made


@pytest.fixture
def nested():
    """outer: beta, d, inner: alpha, innermost: delta."""
    inner = params(alpha=2, innermost=params(delta=22))
    return params(beta=1, d={"foo": "bar"}, inner=inner)


def test_a_parameter_is_an_attribute_and_an_item():
    made = params(units=8, bias=True)
    made.units += 1
    made["bias"] = False
    assert (made["units"], made.bias) == (9, False)
    assert (list(made), len(made), "units" in made, "x" in made) == (
        ["units", "bias"],
        2,
        True,
        False,
    )
    assert made.items() == [("units", 9), ("bias", False)]
    assert made.describe("units") == "About units."
    assert {"units", "define"} <= set(dir(made))


@pytest.mark.parametrize("name", [None, "", "Units", "1x", "_x", "a-b", "a.b", "a\n", 3])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(AssertionError, match=r"^\[Params.define\] expected a name .*, got "):
        Params().define(name, 1, "")


def test_a_parameter_is_defined_once():
    with pytest.raises(AttributeError, match=r"^Parameter a is already defined$"):
        params(a=1).define("a", 2, "")


@pytest.mark.parametrize(
    "use",
    [
        lambda p: p.actuvation,
        lambda p: p["actuvation"],
        lambda p: setattr(p, "actuvation", 1),
        lambda p: p.set(actuvation=1),
        lambda p: p.get("actuvation"),
        lambda p: p.delete("actuvation"),
        lambda p: p.describe("actuvation"),
    ],
)
def test_an_unknown_name_has_similar_ones_in_its_error(use):
    with pytest.raises(AttributeError) as caught:
        use(params(activations=1, activation=2, cheesecake=3))
    assert str(caught.value) == "actuvation (did you mean: [activation,activations])"


@pytest.mark.parametrize("name", ["foo", "abcd", "_units"])
def test_an_unknown_name_alone_is_its_error(name):
    with pytest.raises(AttributeError) as caught:
        getattr(params(fooo=1, units=2, abxcd=3), name)
    assert str(caught.value) == name


def test_half_of_the_pieces_are_not_similar():
    with pytest.raises(AttributeError, match=r"^abcxy$"):  # of abc, bcx one is found
        params(abc=1).abcxy  # noqa: B018


def test_dots_lead_to_nested_parameters(nested):
    assert nested.set(**{"inner.alpha": 3, "inner.innermost.delta": 5, "beta": 6}) is nested
    assert (nested.inner.alpha, nested.get("inner.innermost.delta"), nested.beta) == (3, 5, 6)
    assert nested.delete("inner.innermost.delta", "beta") is nested
    assert ("delta" in nested.inner.innermost, "beta" in nested) == (False, False)


@pytest.mark.parametrize("path", ["inner.gamma", "inner.innermost.bad", "bad.alpha", "bad"])
def test_a_missing_nested_name_is_told_with_its_path(nested, path):
    for use in (nested.get, nested.delete, lambda path: nested.set(**{path: 1})):
        with pytest.raises(AttributeError, match=f"^{path}$"):
            use(path)


@pytest.mark.parametrize("path", ["d.foo", "beta.x", "beta[0]", "d[0]"])
def test_only_parameters_and_lists_can_be_entered(nested, path):
    with pytest.raises(AssertionError, match=f"^Cannot introspect <class '.*'> for .*{path[0]}"):
        nested.get(path)


def test_an_index_leads_into_a_list():
    made = params(layers=[params(dim=1), params(dim=2)], sizes=[1, 2, 3])
    made.set(**{"layers[1].dim": 5, "sizes[0]": 7}).delete("sizes[-1]")
    assert (made.get("layers[1].dim"), made.get("layers[0]").dim, made.sizes) == (5, 1, [7, 2])


@pytest.mark.parametrize("path", ["layers[2].dim", "layers[-3]", "none[0]"])
def test_an_index_without_an_element_is_told_with_its_path(path):
    with pytest.raises(AttributeError) as caught:
        params(layers=[params(dim=1), params(dim=2)]).get(path)
    assert str(caught.value) == path


@pytest.mark.parametrize(
    "change",
    [
        lambda p: setattr(p, "a", 2),
        lambda p: p.__setitem__("a", 2),
        lambda p: p.define("b", 2, ""),
        lambda p: p.delete("a"),
        lambda p: p.__delitem__("a"),
        lambda p: p.copy().delete("a"),
        lambda p: params(inner=p).set(**{"inner.a": 2}),
    ],
)
def test_frozen_parameters_and_their_copies_refuse_changes(change):
    frozen = params(a=1)
    frozen.freeze()
    with pytest.raises(TypeError, match=r"^This Params instance is immutable\.$"):
        change(frozen)
    assert frozen.a == 1


def test_a_refused_set_shows_the_parameters():
    frozen = params(a=1)
    frozen.freeze()
    with pytest.raises(TypeError) as caught:
        frozen.set(a=2)
    assert str(caught.value) == "This Params instance is immutable: {\n  a: 1\n}"


def test_nested_parameters_of_frozen_ones_can_change(nested):
    nested.freeze()
    nested.inner.alpha = 7
    assert nested.get("inner.alpha") == 7


@pytest.mark.parametrize(
    "make", [Params.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_a_copy_is_equal_and_separate(nested, make):
    other = make(nested)
    assert other == nested
    assert other.describe("inner") == "About inner."
    other.inner.alpha = 7
    other.d["foo"] = "x"
    assert (nested.inner.alpha, nested.d) == (2, {"foo": "bar"})


def test_a_copy_keeps_tensors():
    tensor = torch.ones(2)
    made = params(t=tensor, many=[tensor, {"x": (tensor,)}], inner=params(t=tensor))
    other = made.copy()
    found = [other.t, other.many[0], other.many[1]["x"][0], other.inner.t]
    assert all(value is tensor for value in found)
    assert other.many is not made.many


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (params(a=1), params(a=1), True),
        (params(a=1), params(a=2), False),
        (params(a=1), params(a=1, b=1), False),
        (params(a=params(b=1)), params(a=params(b=1)), True),
        (params(a=params(b=1)), params(a=params(b=2)), False),
        (params(a=[params(b=1)]), params(a=[params(b=2)]), False),
        (params(a=1), {"a": 1}, False),
        (params(a=torch.ones(2)), params(a=torch.ones(2)), True),
        (params(a=[torch.ones(2)]), params(a=[torch.zeros(2)]), False),
        (params(a=torch.ones(2)), params(a=torch.ones(3)), False),
        (params(a=torch.ones(2)), params(a=2), False),
        (params(a={"x": np.ones(2)}), params(a={"x": np.ones(2)}), True),
    ],
)
def test_equality_compares_names_and_values(a, b, expected):
    assert (a == b) is expected


class Color(enum.Enum):
    RED = 1


def test_the_text_is_sorted_and_indented(nested):
    inner = params(bar=2)
    made = params(foo=1, inner=inner, a1="x", a=None, color=Color.RED)
    made.define("list", [1, inner, 2], "")
    made.define("dict", {"b": inner, "a": (inner,)}, "")
    assert str(made) == (
        "{\n  a: None\n  a1: \"x\"\n  color: Color.RED\n"
        "  dict: {'a': ({'bar': 2},), 'b': {'bar': 2}}\n  foo: 1\n"
        "  inner: {\n    bar: 2\n  }\n  list: [1, {'bar': 2}, 2]\n}"
    )  # fmt: skip


def test_values_are_copied_to_other_parameters(nested):
    other = params(beta=0, d=None, inner=None, more=5)
    assert copy_params_to(nested, other, skip=["d"]) is other
    assert (other.beta, other.d, other.inner, other.more) == (1, None, nested.inner, 5)
    assert other.inner is not nested.inner


def test_values_are_not_copied_to_what_is_not_defined(nested):
    with pytest.raises(AttributeError, match=r"^beta$"):
        copy_params_to(nested, params(d=1))


def test_an_update_takes_what_it_uses(nested):
    args = {"delta": 1, "beta": 2, "unknown": 3}
    update_params(nested, args)
    assert (nested.inner.innermost.delta, nested.beta, args) == (1, 2, {"unknown": 3})
