"""What the compiled core refuses of a spec. Users meet the checks of `Segment` before."""

import pytest

import monolith._native as native

OPTIONS = [("initial_accumulator_value", 0.1), ("weight_decay_factor", 0.0)]
CASES = {
    "[Layout] expected a known optimizer, got 'mine'": ("mine", []),
    "[Layout] expected option 'weight_decay_factor' of adagrad": ("adagrad", OPTIONS[:1]),
    "[Layout] expected 2 option(s) of adagrad, got 3": ("adagrad", [*OPTIONS, ("surplus", 1.0)]),
}


@pytest.mark.parametrize("text", CASES)
def test_layout_refuses(text):
    optimizer, options = CASES[text]
    spec = native.SegmentSpec(2, optimizer, options, (0.0, 0.0), False, ("fp32", 0.0), ("", 0.0))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        native.Table("user", [spec], 0, False, "refuse", 0.0)
    assert str(caught.value) == text


@pytest.mark.parametrize(("what", "codec", "view"), [("codec", "x", ""), ("view", "fp32", "x")])
def test_layout_refuses_unknown_codes(what, codec, view):
    spec = native.SegmentSpec(2, "sgd", [], (0.0, 0.0), False, (codec, 0.0), (view, 0.0))
    with pytest.raises(ValueError, match=rf"\[Layout\] expected a known {what}, got 'x'"):
        native.Table("user", [spec], 0, False, "refuse", 0.0)
