import re

import pytest

from monolith.nn import Feature, Features
from monolith.nn.feature import slice_columns, table_configs
from monolith.table import Budget, Expiry, MinCount, Segment, Zeros
from monolith.table.config import segments_of
from monolith.table.optimizers import FTRL, SGD, Adagrad


def refused(error, text, *args, **options):
    with pytest.raises(error) as caught:
        Feature(*args, **options)
    assert str(caught.value) == text


def test_a_feature_has_a_table_of_its_name_with_one_segment():
    config = Feature("user", dim=4, optimizer=SGD(0.5), precision="bf16").table_config()
    assert config.name == "user"
    assert [(s.dim, s.optimizer, s.precision) for s in segments_of(config)] == [
        (4, SGD(0.5), "bf16")
    ]


def test_admission_expiry_budget_and_seed_are_those_of_the_table():
    rules = {"admission": MinCount(3), "budget": Budget(1 << 30), "seed": 7}
    config = Feature("user", dim=4, expiry=90, **rules).table_config()
    assert config.expiry == Expiry(90)
    assert {name: getattr(config, name) for name in rules} == rules


@pytest.mark.parametrize(
    ("given", "days"), [("90d", 90), ("2w", 14), ("1y", 365), (5, 5), (Expiry(6), 6)]
)
def test_an_expiry_is_days_a_text_or_an_expiry(given, days):
    assert Feature("user", dim=1, expiry=given).table_config().expiry == Expiry(days)


@pytest.mark.parametrize("given", ["90", "d", "1.5d", "90 d", True, 1.5])
def test_other_expiries_are_refused(given):
    text = "[Feature] expected expiry as days, '90d', '12w', '1y' or an Expiry, got "
    refused(ValueError, f"{text}{given!r} (feature 'user')", "user", dim=1, expiry=given)


def test_slices_have_dim_initializer_optimizer_rate_and_precision_of_their_own():
    slices = [Segment(2, SGD(0.5), Zeros(), "first", "fp16"), Segment(3, Adagrad(0.1))]
    config = Feature("user", slices=slices).table_config()
    assert list(segments_of(config)) == slices
    assert slice_columns(config) == {"first": slice(0, 2), "1": slice(2, 5)}


def test_a_bias_is_a_slice_of_one_weight_before_the_others():
    config = Feature("user", slices=[Segment(2), Segment(3)], bias=True).table_config()
    bias = segments_of(config)[0]
    assert bias == Segment(1, FTRL(initial_accumulator_value=1e-6, beta=1.0), Zeros(), "bias")
    assert slice_columns(config) == {"bias": slice(0, 1), "0": slice(1, 3), "1": slice(3, 6)}


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_a_text(name):
    refused(ValueError, f"[Feature] expected a name, got {name!r}", name, dim=1)


@pytest.mark.parametrize(
    ("options", "got"), [({}, "neither"), ({"dim": 1, "slices": [Segment(1)]}, "both")]
)
def test_a_feature_has_either_a_dim_or_slices(options, got):
    text = f"[Feature] expected either dim or slices, got {got} (feature 'user')"
    refused(ValueError, text, "user", **options)


@pytest.mark.parametrize(
    "option", [{"optimizer": SGD()}, {"initializer": Zeros()}, {"precision": "bf16"}]
)
def test_options_of_a_slice_are_not_given_beside_slices(option):
    (name,) = option
    text = f"[Feature] expected {name} in each of slices, got it beside them (feature 'a')"
    refused(ValueError, text, "a", slices=[Segment(1)], **option)


@pytest.mark.parametrize(
    ("error", "text", "options"),
    [
        (ValueError, "[Segment] expected 1 <= dim <= 65536, got 0", {"dim": 0}),
        (TypeError, "[Segment] expected dim as an integer, got 1.5", {"dim": 1.5}),
        (TypeError, "[Feature] expected slices as a sequence, got 3 (feature 'a')", {"slices": 3}),
        (
            TypeError,
            "[Feature] expected bias as bool, got 1 (feature 'a')",
            {"dim": 1, "bias": 1},
        ),
        (
            ValueError,
            "[Feature] expected combiner in sum, mean, sqrtn, first, rows, got 'max' (feature 'a')",
            {"dim": 1, "combiner": "max"},
        ),
        (
            TypeError,
            "[Feature] expected max_length as an integer, got '5' (feature 'a')",
            {"dim": 1, "max_length": "5"},
        ),
        (
            ValueError,
            "[Feature] expected max_length >= 0, got -1 (feature 'a')",
            {"dim": 1, "max_length": -1},
        ),
        (
            ValueError,
            "[Feature] expected max_length >= 1 with combiner 'first', got 0 (feature 'a'); it is "
            "the number of rows of a sample",
            {"dim": 1, "combiner": "first"},
        ),
        (
            ValueError,
            "[Feature] expected no max_length with combiner 'rows', got 2 (feature 'a'); it gives "
            "all rows",
            {"dim": 1, "combiner": "rows", "max_length": 2},
        ),
        (TypeError, "[Feature] expected shares as str, got 1 (feature 'a')", {"shares": 1}),
        (
            ValueError,
            "[Feature] expected shares to name another feature, got 'a' itself",
            {"shares": "a"},
        ),
        (
            ValueError,
            "[Feature] expected expiry at the feature that owns the table, got it here (feature "
            "'a', which shares that of 'b')",
            {"shares": "b", "expiry": 1},
        ),
    ],
)
def test_wrong_options_are_refused(error, text, options):
    refused(error, text, "a", **options)


def test_features_that_share_have_the_table_of_the_owner():
    user, history = Feature("user", dim=4), Feature("history", dim=4, shares="user")
    assert [config.name for config in table_configs([history, user])] == ["user"]


@pytest.mark.parametrize(
    ("features", "text"),
    [
        (
            [Feature("a", dim=1), Feature("a", dim=1)],
            "[Feature] expected different names, got several of a",
        ),
        (
            [Feature("a", dim=1), Feature("b", shares="c")],
            "[Feature] expected shares to name a feature with a table of its own, got 'c' "
            "(feature 'b'; tables: a)",
        ),
        (
            [Feature("a", dim=2, bias=True), Feature("b", dim=3, shares="a")],
            "[Feature] expected dim 2, as 'a' has, got 3 (feature 'b'); leave it out",
        ),
    ],
)
def test_features_that_do_not_fit_together_are_refused(features, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        table_configs(features)


def test_a_table_has_the_other_names_of_its_feature():
    features = Features([Feature("user", dim=1, restore_names=["uid"]), Feature("item", dim=1)])
    assert [tuple(t.restore_names) for t in features.tables.values()] == [("uid",), ()]


@pytest.mark.parametrize("names", ["uid", [1]])
def test_other_names_are_a_sequence_of_words(names):
    with pytest.raises(TypeError, match=r"restore_names as a sequence of str, got .*'user'"):
        Feature("user", dim=1, restore_names=names)
