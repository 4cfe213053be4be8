import math
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch

from monolith import data
from monolith.checkpoint.state_tree import flatten_state, unflatten_state
from monolith.nn import Feature
from monolith.observe.learning import Auc, Calibration, LogLoss
from monolith.table import MinCount
from monolith.train import EarlyStop, Metric, ReportHook, Task, Trainer, TrainSettings, figures
from monolith.train.figures import Meter, memory_bytes
from monolith.train.inputs import Trainee
from tests.train.tasks import Clicks, Counting, clicks


class Reports(ReportHook):
    def __init__(self):
        self.all = []

    def report(self, figures):
        self.all.append(figures)


class Mean(Metric):
    """A metric: mean prediction minus mean label."""

    def __init__(self):
        self.predictions, self.labels = [], []

    def update(self, predictions, labels, *, weights=None):
        self.predictions += predictions.tolist()
        self.labels += labels.tolist()

    @property
    def value(self):
        return sum(self.predictions) / len(self.predictions) - sum(self.labels) / len(self.labels)


def reports_of(task, **options):
    with Trainer(task, TrainSettings(**options), hooks=[reports := Reports()]) as trainer:
        result = trainer.fit()
    return reports.all, result


def test_figures_are_reported_every_n_steps_and_at_the_end():
    reports, result = reports_of(Counting(7), log_every=3)
    assert [(report.step, report.num_samples) for report in reports] == [(3, 3), (6, 3), (7, 1)]
    assert result.figures == reports[-1]
    assert [report.loss for report in reports] == [
        -1.0,
        -4.0,
        -6.0,
    ]  # means since the last report


def test_figures_have_the_share_of_a_source_of_known_size():
    samples = {"user": range(8), "item": range(8), "hour": [0.5] * 8, "click": [0.0, 1.0] * 4}
    source = data.arrow_table(pa.table(samples)).repeat(4).batch(8)
    reports, _ = reports_of(Clicks(source), log_every=1)
    assert [report.share for report in reports] == [0.25, 0.5, 0.75, 1.0]
    assert reports_of(Clicks(clicks(2)))[0][-1].share is None


def test_without_reports_there_are_figures_of_the_whole_run():
    reports, result = reports_of(Counting(7), log_every=0)
    assert [report.num_samples for report in reports] == [7]
    assert result.num_samples == 7


def test_metrics_of_the_task_are_reported():
    class Measured(Clicks):
        def metrics(self):
            return {"bias": Mean()}

    task = Measured(held_out=clicks(1))
    (report,), _ = reports_of(task, log_every=0)
    assert -1 < report.metrics["bias"] < 1
    with Trainer(task) as trainer:
        scores = trainer.evaluate()
        (output,) = trainer.predict()
        wanted = output.prediction.mean() - task.held_out[0].label.mean()
    assert scores["bias"] == pytest.approx(wanted.item(), abs=1e-6)


def test_default_metrics_are_those_of_the_samples_since_the_last_report():
    batches = clicks(4)
    outputs = []

    class Keep(ReportHook):
        def after_run(self, ctx, results):
            outputs.extend(results.value.parts)

    settings = TrainSettings(log_every=2)
    with Trainer(Clicks(batches), settings, hooks=[Keep(), reports := Reports()]) as trainer:
        trainer.fit()
    metrics = {"auc": Auc(), "log_loss": LogLoss(), "calibration": Calibration()}
    for output in outputs[2:]:
        for metric in metrics.values():
            metric.update(output.prediction, output.batch.label)
    assert reports.all[1].metrics == {name: metric.value for name, metric in metrics.items()}
    assert reports.all[1].loss == pytest.approx(metrics["log_loss"].value, abs=1e-5)


def test_weights_of_samples_count_in_metrics():
    weight = torch.tensor([1.0, 0.0] * 4)
    (batch,) = clicks(1, weight=weight)
    with Trainer(Clicks()) as trainer:
        scores = trainer.evaluate([batch])
        (output,) = trainer.predict([batch])
    loss = LogLoss()
    loss.update(output.prediction[::2], batch.label[::2])
    assert scores["log_loss"] == pytest.approx(loss.value)


def test_default_metrics_that_do_not_fit_are_left_out(caplog):
    class Plain(Counting):
        metrics = Task.metrics

    reports, _ = reports_of(Plain(4), log_every=1)
    assert [report.metrics for report in reports[1:]] == [{}] * 3
    (message,) = caplog.messages
    wanted = "auc, log_loss, calibration are left out: [Auc] expected predictions in [0, 1]"
    assert message.startswith(wanted)


def test_metrics_that_the_task_chose_must_fit():
    class Chosen(Counting):
        def metrics(self):
            return {"auc": Auc()}

    with Trainer(Chosen(4)) as trainer, pytest.raises(ValueError, match="expected predictions in"):
        trainer.fit()


@pytest.mark.parametrize(
    ("label", "number"), [("a", 3), (["a"], 3), (["a", "b"], 0)], ids=["text", "one", "two"]
)
def test_only_a_task_with_one_label_has_metrics_unless_overridden(label, number):
    task = Clicks()
    task.label = label
    assert len(task.metrics()) == number


def test_several_labels_are_columns():
    class Two(Clicks):
        label = ("click", "hour")
        dense = ()

        def build(self):
            return torch.nn.Linear(8, 2)

        def loss(self, model, inputs, batch):
            both = model(inputs.pooled.joined)
            return both.square().mean(), both

        def metrics(self):
            return {"bias": Mean2()}

    shapes = []

    class Mean2(Mean):
        def update(self, predictions, labels, *, weights=None):
            shapes.append((tuple(predictions.shape), tuple(labels.shape)))

        @property
        def value(self):
            return None

    (report,), _ = reports_of(Two(), steps=1)
    assert shapes == [((8, 2), (8, 2))]
    assert report.metrics == {}


def test_rows_and_refused_ids_are_counted():
    class Admitted(Clicks):
        features = (Feature("user", dim=4, admission=MinCount(1000)), Feature("item", dim=4))

    batches = clicks(2)
    items = torch.cat([batch.features["item"].values for batch in batches]).unique()
    users = [batch.features["user"].values.unique() for batch in batches]
    (report,), _ = reports_of(Admitted(batches))
    assert report.num_rows == len(items)
    assert report.num_refused == sum(map(len, users))
    assert report.memory_bytes > 1 << 20
    assert report.samples_per_second > 0


def test_expired_rows_are_evicted_and_counted():
    class Expiring(Clicks):
        features = (Feature("user", dim=4, expiry=1), Feature("item", dim=4, expiry="1d"))

    day = 86400
    old = clicks(1, time=torch.full((8,), 1000))
    new = clicks(1, seed=1, time=torch.full((8,), 1000 + 2 * day))
    for evict_every, is_evicted in ((0, False), (2, True), (3, False)):
        settings = TrainSettings(evict_every=evict_every)
        with Trainer(Expiring(old + new), settings, clock=lambda: 1000 + 2 * day) as trainer:
            figures = trainer.fit().figures
            times = {
                time
                for table in trainer.features.tables.values()
                for chunk in table.export()
                for time in chunk.times.tolist()
            }
        assert (figures.num_evicted > 0) is is_evicted
        assert (1000 in times) is not is_evicted


def test_a_run_ends_early_when_its_evaluations_become_no_better():
    settings = TrainSettings(eval_every=2, early_stop=EarlyStop("rising_loss", patience=2))

    class Worse(Counting):
        def metrics(self):
            return {"rising_loss": Rising()}

    class Rising(Mean):
        @property
        def value(self):
            return -sum(self.predictions)

    with Trainer(Worse(20), settings) as trainer:
        result = trainer.fit()
    assert (result.ended, result.num_steps) == ("early stop", 6)
    assert list(result.evaluations) == [2, 4, 6]


def test_a_run_whose_evaluations_become_better_goes_on():
    settings = TrainSettings(eval_every=2, early_stop=EarlyStop("loss", patience=1))
    with Trainer(Counting(8), settings) as trainer:
        assert trainer.fit().ended == "end of data"


def test_an_early_stop_needs_a_metric_of_the_evaluation():
    settings = TrainSettings(eval_every=2, early_stop=EarlyStop("ndcg"))
    text = r"^\[EarlyStop\] expected a metric of the evaluation \(loss\), got 'ndcg'$"
    with Trainer(Counting(8), settings) as trainer, pytest.raises(ValueError, match=text):
        trainer.fit()


def test_a_meter_divides_samples_by_seconds():
    seconds = iter([10.0, 12.0])
    meter = Meter(dict, seconds=lambda: next(seconds))
    meter.add(0.5, torch.zeros(8), None)
    assert meter.samples_per_second == 4
    assert math.isnan(Meter(dict).loss)


def test_a_pause_is_no_time_of_the_samples():
    seconds = iter([10.0, 11.0, 61.0, 62.0])
    meter = Meter(dict, seconds=lambda: next(seconds))
    meter.add(0.5, torch.zeros(8), None)
    with meter.paused():
        pass  # for 50 seconds
    assert meter.samples_per_second == 4


def test_evaluations_do_not_lower_the_rate_of_training(monkeypatch):
    class Clock(Reports):
        now = 0.0

        def after_run(self, ctx, results):
            self.now += 0.5  # a step; of one sample

    def evaluate(self):
        clock.now += 100.0
        return {}

    clock = Clock()
    monkeypatch.setattr(Trainee, "new_meter", lambda self: Meter(dict, seconds=lambda: clock.now))
    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    settings = TrainSettings(eval_every=2, log_every=3)
    with Trainer(Counting(6), settings, hooks=[clock]) as trainer:
        trainer.fit()
    assert [report.samples_per_second for report in clock.all] == [2.0, 2.0]


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_memory_is_the_peak_without_proc(monkeypatch, platform, unit):
    monkeypatch.setattr(figures.Path, "exists", lambda path: False)
    monkeypatch.setattr(sys, "platform", platform)
    usage = SimpleNamespace(ru_maxrss=5)
    monkeypatch.setattr(figures.resource, "getrusage", lambda who: usage)
    assert memory_bytes() == 5 * unit


def test_a_restored_meter_has_the_bits_of_one_that_was_not_saved():
    def make():
        return Meter(lambda: {"auc": Auc(), "loss": LogLoss()}, seconds=lambda: 0.0)

    first, whole, random = make(), make(), torch.Generator().manual_seed(0)
    for _ in range(7):
        prediction, label = torch.rand(300, generator=random), torch.arange(300) % 2
        weight = torch.rand(300, generator=random) if first.num_samples % 600 else None
        for meter in (first, whole):
            meter.add(0.5, prediction, label, weight)
        state, first = first.state_dict(), make()
        first.load_state_dict(state)
        assert first.samples_per_second == 0.0
    assert (first.num_samples, first.loss) == (whole.num_samples, whole.loss)
    assert first.values() == whole.values()


def test_a_metric_without_a_state_begins_with_the_pending_batches():
    meter, restored = Meter(lambda: {"mean": Mean()}), Meter(lambda: {"mean": Mean()})
    for size in (1024, 3):
        meter.add(0.5, torch.rand(size), torch.ones(size))
    restored.load_state_dict(meter.state_dict())
    restored.values()
    assert len(restored._metrics["mean"].labels) == 3


def test_a_metric_is_restored_with_its_saved_state():
    class Kept(Mean):
        def state_dict(self):
            return {"a": [1, 2], "b": [0.5], "c": torch.ones(2), "d": [1, 0.5], "e": [], "f": "x"}

        def load_state_dict(self, state):
            self.state = state

    first, second = Meter(lambda: {"kept": Kept()}), Meter(lambda: {"kept": Kept()})
    flat, tensors = flatten_state(first.state_dict(), "s")
    assert sorted(tensors) == [
        f"s/metrics/kept/{name}" for name in ("lists/a", "lists/b", "rest/c")
    ]
    second.load_state_dict(unflatten_state(flat, tensors))
    state = second._metrics["kept"].state
    assert state.pop("c").tolist() == [1.0, 1.0]
    assert state == {"a": [1, 2], "b": [0.5], "d": [1, 0.5], "e": [], "f": "x"}
