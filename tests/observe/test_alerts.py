import math

import pytest

from monolith.observe.alerts import AlertRule, Alerts, alert_rules
from monolith.observe.metrics import MemorySink


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("loss>1.5", ("loss", True, 1.5)),
        (" auc < .6 ", ("auc", False, 0.6)),
        ("staleness>100", ("staleness", True, 100.0)),
        ("gain<-1e-3", ("gain", False, -0.001)),
    ],
)
def test_a_text_is_a_rule(text, rule):
    assert AlertRule.of(text) == rule


@pytest.mark.parametrize("text", ["", "loss", "loss>", "loss>=1", "loss=1", "1>loss", "a>1,b>2", 3])
def test_another_text_is_refused(text):
    with pytest.raises(ValueError, match=r"expected FIGURE>NUMBER or FIGURE<NUMBER, got .*loss>1"):
        AlertRule.of(text)


def test_a_figure_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"a figure of loss, auc, got 'acu' \(rule 'acu<0\.5'\)"):
        alert_rules(["loss>1", "acu<0.5"], ["loss", "auc"])


@pytest.mark.parametrize(
    ("rule", "fires"), [("a>1", [False, False, True]), ("a<1", [True, False, False])]
)
def test_a_value_at_the_limit_is_no_alert(rule, fires):
    assert [AlertRule.of(rule).fires(value) for value in (0, 1, 2)] == fires
    assert not AlertRule.of(rule).fires(math.nan)


def test_an_alert_is_told_once_until_it_is_over(caplog):
    caplog.set_level("WARNING", "monolith")
    sink = MemorySink()
    alerts = Alerts([AlertRule.of("loss>1.5"), AlertRule.of("auc<0.6")], sink)
    assert sink.total("run/alerts", {"rule": "auc<0.6"}) == 0
    for step, loss in enumerate([1.0, 2.0, 3.0, 1.5, 1.6], start=1):
        alerts.check(step, {"loss": loss, "auc": 0.7})
    assert sink.total("run/alerts", {"rule": "loss>1.5"}) == 2
    assert sink.total("run/alerts", {"rule": "auc<0.6"}) == 0
    names = [(name, fields["step"], fields["value"]) for name, fields in sink.events]
    assert names == [("alert", 2, 2.0), ("alert_over", 4, 1.5), ("alert", 5, 1.6)]
    assert [record.message for record in caplog.records] == [
        "alert loss>1.5: loss is 2 at step 2",
        "alert loss>1.5 is over: loss is 1.5 at step 4",
        "alert loss>1.5: loss is 1.6 at step 5",
    ]


def test_a_figure_without_a_value_changes_nothing():
    sink = MemorySink()
    alerts = Alerts([AlertRule.of("auc<0.6")], sink)
    for step, figures in enumerate([{"auc": 0.5}, {}, {"auc": 0.5}]):
        alerts.check(step, figures)
    assert sink.total("run/alerts", {"rule": "auc<0.6"}) == 1
