"""Alerts over the figures of a run."""

import pytest

from monolith.observe.metrics import MemorySink
from monolith.train import Figures, Trainer, TrainSettings
from monolith.train.figures import ALERT_FIGURES, AlertsHook
from tests.train.tasks import Clicks, clicks


def alerts_of(*rules):
    sink = MemorySink()
    settings = TrainSettings(alerts=rules, log_every=2)
    with Trainer(Clicks(), settings, metrics=sink) as trainer:
        trainer.fit(clicks(6))
    return [(name, f["step"], f["rule"]) for name, f in sink.events if name.startswith("alert")]


def test_a_run_tells_its_alerts_at_a_report():
    rules = ("loss>0", "loss<0", "num_rows>1000000", "auc>-1")
    assert alerts_of(*rules) == [("alert", 2, "loss>0"), ("alert", 2, "auc>-1")]


def test_a_run_without_rules_tells_none():
    assert alerts_of() == []


def test_a_rule_over_another_figure_is_an_error_at_the_start():
    with pytest.raises(ValueError, match=r"a figure of loss, samples_per_second, .*auc.*got 'x'"):
        Trainer(Clicks(), TrainSettings(alerts=("x>1",)))


def test_a_text_that_is_no_rule_is_an_error_of_the_settings():
    with pytest.raises(ValueError, match="expected FIGURE>NUMBER or FIGURE<NUMBER, got 'loss'"):
        TrainSettings(alerts=("loss",))


def test_lost_pushes_are_those_of_the_servers():
    class Noted:
        def check(self, step, figures):
            self.figures = figures

    noted = Noted()
    AlertsHook(noted, lambda: 3).report(Figures(4, 8, 0.5, {"auc": 0.7}, staleness=2))
    assert noted.figures["lost_pushes"] == 3
    assert (noted.figures["auc"], noted.figures["staleness"]) == (0.7, 2)
    assert {*noted.figures} == {*ALERT_FIGURES, "auc"}
