import dataclasses
import gc
import time
import weakref

import pytest

from monolith.errors import AbortedError
from monolith.observe import Auc, MemorySink, NullSink
from monolith.observe.summaries import SUMMARIES
from monolith.train import EarlyStop, Hook, ReportHook, Trainer, TrainSettings
from monolith.train.driver import current_run
from monolith.train.run_metrics import MetricsHook
from monolith.train.step.step_stages import Stages
from tests.train.resumable import SETTINGS
from tests.train.resumable import Clicks as Resumable
from tests.train.tasks import Clicks, Counting, Raise, StopAfter, clicks
from tests.train.test_recovery import Fault


def fit(task, *hooks, sink=None, **options):
    sink = MemorySink() if sink is None else sink
    with Trainer(task, TrainSettings(**options), hooks=hooks, metrics=sink) as trainer:
        trainer.fit()
    return sink


def value(sink, name):
    return sink.value(name, {})


class Reports(ReportHook):
    def __init__(self):
        self.all = []

    def report(self, figures):
        self.all.append(figures)


@pytest.mark.parametrize("metrics", ["logs", MemorySink])
def test_an_object_that_is_no_sink_is_refused_at_the_start(metrics):
    with pytest.raises(TypeError, match=r"expected metrics as a sink with count.*TensorBoardSink"):
        Trainer(Clicks(), metrics=metrics)


def test_a_sink_gets_the_figures_of_each_report_at_its_step():
    sink = fit(Clicks(), reports := Reports(), log_every=4)
    for name, figure in (
        ("train/loss", lambda f: f.loss),
        ("train/auc", lambda f: f.metrics["auc"]),
        ("train/log_loss", lambda f: f.metrics["log_loss"]),
        ("train/calibration", lambda f: f.metrics["calibration"]),
        ("train/samples_per_second", lambda f: f.samples_per_second),
        ("train/staleness", lambda f: f.staleness),
        ("tables/rows", lambda f: f.num_rows),
        ("process/memory_bytes", lambda f: f.memory_bytes),
    ):
        assert sink.history(name, {}) == [(f.step, figure(f)) for f in reports.all], name
    assert [report.step for report in reports.all] == [4, 6]


def test_steps_samples_and_rows_are_counted():
    sink = fit(Clicks(clicks(7, size=8)), log_every=3)
    assert sink.total("run/steps", {}) == 7
    assert sink.total("run/samples", {}) == 56
    assert sink.total("tables/admitted", {}) == value(sink, "tables/rows")
    assert (sink.total("tables/refused", {}), sink.total("tables/evicted", {})) == (0, 0)


def test_counters_of_a_second_fit_begin_where_the_first_ended():
    sink = MemorySink()
    with Trainer(Clicks(), metrics=sink) as trainer:
        trainer.fit(clicks(3))
        trainer.fit(clicks(3))
        assert sink.total("tables/admitted", {}) == trainer.features.num_rows()
    assert sink.total("run/steps", {}) == 6


def test_samples_of_a_restored_run_are_counted_once(tmp_path):
    batches = clicks(6, size=8)
    fit(Clicks(batches[:4]), checkpoint_dir=str(tmp_path), save_every=3)
    with Trainer(Clicks(), metrics=(sink := MemorySink())) as trainer:
        trainer.restore(tmp_path / "model.ckpt-3")
        figures = trainer.fit(batches[3:]).figures
    assert figures.num_samples == 48
    assert (sink.total("run/steps", {}), sink.total("run/samples", {})) == (3, 24)


def test_recoveries_are_counted():
    class Aborted(Counting):
        def loss(self, model, inputs, batch):
            loss, prediction = super().loss(model, inputs, batch)
            if len(self.seen) in (3, 5):
                raise AbortedError("gone")
            return loss, prediction

    sink = fit(Aborted(6))
    assert (sink.total("run/recoveries", {}), sink.total("run/steps", {})) == (2, 6)


def test_recoveries_of_a_run_that_makes_no_step_any_more_are_counted():
    class Gone(Counting):
        def loss(self, model, inputs, batch):
            raise AbortedError("gone")

    sink = MemorySink()
    settings = TrainSettings(max_recoveries=2)
    with Trainer(Gone(), settings, metrics=sink) as trainer, pytest.raises(AbortedError):
        trainer.fit()
    assert sink.total("run/recoveries", {}) == 2
    names = [name for name, _ in sink.events]
    assert names == ["run_started", "run_recovered", "run_recovered", "run_failed"]


def test_rows_that_a_recovery_restores_are_not_admitted_again(tmp_path):
    settings = dataclasses.replace(SETTINGS, checkpoint_dir=str(tmp_path), log_every=1)
    sink = MemorySink()
    with Trainer(Resumable("plain"), settings, metrics=sink) as trainer:
        fault = Fault("table", step=5)  # the step after a save, so that no step is repeated
        fault.attach(trainer)
        result = trainer.fit()
        num_left = trainer.features.num_rows() + result.figures.num_evicted
    assert result.num_recoveries == 1
    assert sink.total("tables/admitted", {}) == num_left


def test_bytes_of_tables_are_summed_once_a_second():
    now, times = [0.0], []

    class Watch(NullSink):
        def gauge(self, name, value, tags):
            if name == "tables/bytes":
                times.append(now[0])

    with Trainer(Clicks()) as trainer:
        trainer.fit(hooks=[reports := Reports()])
        hook = MetricsHook(Watch(), trainer.run, trainer.features, Stages(), clock=lambda: now[0])
        for now[0] in (0.5, 1.0, 1.5, 1.9, 2.0, 2.5):
            hook.report(reports.all[-1])
    assert times == [1.0, 2.0]


def test_bytes_of_tables_are_those_of_their_memory_reports():
    sink = MemorySink()
    with Trainer(Clicks(), metrics=sink) as trainer:
        trainer.fit()
        tables = trainer.features.tables.values()
        assert value(sink, "tables/bytes") == sum(t.memory_report()["total_bytes"] for t in tables)


def test_times_of_steps_add_up_to_less_than_the_run():
    class Slow(Clicks):
        def loss(self, model, inputs, batch):
            time.sleep(0.02)
            return super().loss(model, inputs, batch)

    class Watch(Hook):
        def after_create_session(self, run, coordinator):
            self.seconds = -time.perf_counter()

        def end(self, run):
            self.seconds += time.perf_counter()

    sink = fit(Slow(clicks(20)), watch := Watch())
    step = sink.summary("step/time", {})
    assert 0.02 * step.num_times <= step.num_times * step.mean / 1e6 <= watch.seconds


@pytest.mark.parametrize("prefetch", [0, 1])
def test_times_of_the_stages_add_up_to_the_step(prefetch):
    sink = fit(Clicks(clicks(40)), prefetch=prefetch)
    step = sink.summary("step/time", {})
    assert step.num_times == 40
    stages = ("wait", "forward", "backward", "update")
    times = [value(sink, f"step/{stage}_seconds") for stage in stages]
    assert all(times)
    assert sum(times) <= step.mean / 1e6
    inside = [value(sink, f"step/{stage}_seconds") for stage in ("read", "lookup")]
    assert all(inside)
    if not prefetch:
        assert sum(inside) <= value(sink, "step/wait_seconds")


def test_times_of_many_steps_do_not_wait_for_the_report():
    numbers = []

    class Look(Hook):
        def before_run(self, ctx):
            numbers.append(sink.summary("step/time", {}).num_times)

    fit(Counting(1030), Look(), sink=(sink := MemorySink()), log_every=0)
    assert sorted(set(numbers)) == [0, 1024]
    assert sink.summary("step/time", {}).num_times == sink.total("run/steps", {}) == 1030


def test_without_a_sink_nothing_is_timed():
    class Timed(Clicks):
        def loss(self, model, inputs, batch):
            assert not any(stage.is_timed for stage in self.trainer._loop.stages.all)
            return super().loss(model, inputs, batch)

    for sink in (None, NullSink()):
        with Trainer(task := Timed(), metrics=sink) as trainer:
            task.trainer = trainer
            assert trainer.fit().num_steps == 6


def test_a_stage_that_raises_an_error_adds_no_time():
    (stage, *_) = Stages().all
    stage.is_timed = True
    with pytest.raises(KeyError), stage:
        raise KeyError
    assert stage.seconds == 0.0


def test_evaluations_are_written_at_their_steps():
    task = Clicks(held_out=clicks(2, seed=1))
    rule = EarlyStop("auc", patience=100)
    sink = MemorySink()
    with Trainer(task, TrainSettings(eval_every=2, early_stop=rule), metrics=sink) as trainer:
        result = trainer.fit()
    for name in ("loss", "auc", "log_loss", "calibration"):
        wanted = [(step, figures[name]) for step, figures in result.evaluations.items()]
        assert sink.history(f"eval/{name}", {}) == wanted
    times = sink.summary("eval/time", {})
    assert (times.num_times, times.minimum > 1) == (3, True)  # microseconds


def test_saves_are_events_with_their_seconds(tmp_path):
    sink = fit(Clicks(), checkpoint_dir=str(tmp_path), save_every=4)
    saves = [fields for name, fields in sink.events if name == "checkpoint_saved"]
    assert [fields["step"] for fields in saves] == [4, 6]
    assert saves[0]["path"] == str(tmp_path / "model.ckpt-4")
    assert all(fields["seconds"] > 0 for fields in saves)
    assert sink.total("run/checkpoints", {}) == sink.summary("run/checkpoint_time", {}).num_times


def test_a_save_by_hand_is_an_event_too(tmp_path):
    with Trainer(Clicks(), metrics=(sink := MemorySink())) as trainer:
        prefix = trainer.save(tmp_path)
    ((name, fields),) = sink.events
    assert (name, fields["path"]) == ("checkpoint_saved", prefix)


def test_the_start_and_the_end_of_a_run_are_events():
    sink = fit(Counting(5), StopAfter(3))
    (started, ended) = sink.events
    assert started == ("run_started", {"step": 0})
    assert ended[0] == "run_ended"
    assert {**ended[1], "seconds": 0} == {
        "step": 3,
        "ended": "stopped",
        "num_steps": 3,
        "num_samples": 3,
        "seconds": 0,
    }


def test_a_run_that_fails_writes_its_last_figures_and_the_error():
    sink = MemorySink()
    with pytest.raises(KeyError, match="as asked"):
        fit(Clicks(), Raise(5, KeyError("as asked")), sink=sink, log_every=3)
    assert [step for step, _ in sink.history("train/loss", {})] == [3, 5]
    assert sink.total("run/steps", {}) == 4  # the hook before the sink's raised in the fifth
    assert sink.events[-1] == (
        "run_failed",
        {"step": 5, "error": "KeyError", "text": "'as asked'"},
    )


class Flushes(MemorySink):
    """Keeps the names of events and the steps of flushes in their order."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def event(self, name, fields):
        self.calls.append(name)

    def flush(self, step):
        self.calls.append(step)


@pytest.mark.req("NT-SUMOP-T4")
@pytest.mark.parametrize("step", [1, 5])
def test_the_error_of_a_run_is_flushed(step):
    sink = Flushes()
    with pytest.raises(KeyError):
        fit(Clicks(), Raise(step, KeyError("as asked")), sink=sink, log_every=3)
    assert sink.calls[-2:] == ["run_failed", step]


def test_the_end_of_a_run_is_flushed():
    assert fit(Clicks(), StopAfter(4), sink=Flushes()).calls[-2:] == ["run_ended", 4]


def test_a_run_that_fails_at_its_start_is_written():
    class Broken(Clicks):
        def loss(self, model, inputs, batch):
            raise RuntimeError("broken")

    sink = MemorySink()
    with pytest.raises(RuntimeError, match="broken"):
        fit(Broken(), sink=sink)
    assert [name for name, _ in sink.events] == ["run_started", "run_failed"]
    assert not sink.names


def test_figures_that_cannot_be_computed_do_not_hide_the_error(caplog):
    class Odd(Clicks):
        def metrics(self):
            return {"auc": Auc()}

        def loss(self, model, inputs, batch):
            loss, prediction = super().loss(model, inputs, batch)
            return loss, prediction + 2

    sink = MemorySink()
    with pytest.raises(KeyError, match="as asked"):
        fit(Odd(), Raise(2, KeyError("as asked")), sink=sink)
    assert sink.events[-1][1]["error"] == "KeyError"
    assert "the figures before the error of the run are lost" in caplog.text


class Full(MemorySink):
    """A sink on a full disk."""

    def flush(self, step):
        raise OSError(28, "No space left on device")


def test_a_sink_that_fails_does_not_end_a_run(caplog):
    with Trainer(Clicks(), TrainSettings(log_every=1)) as trainer:
        wanted = trainer.fit().figures.loss
    with Trainer(Clicks(), TrainSettings(log_every=1), metrics=Full()) as trainer:
        assert trainer.fit().figures.loss == wanted
    assert "No space left on device" in caplog.text


def test_a_run_closes_no_sink():
    class Closing(MemorySink):
        is_closed = False

        def close(self):
            self.is_closed = True

    assert not fit(Clicks(), sink=Closing()).is_closed


class Recording(Clicks):
    """Records the first prediction of each step, and keeps a weak reference to its graph."""

    def __init__(self, batches=None, held_out=()):
        super().__init__(batches, held_out)
        self.predictions, self.graphs = [], []

    def loss(self, model, inputs, batch):
        loss, prediction = super().loss(model, inputs, batch)
        tensors = current_run() and current_run().metadata.get(SUMMARIES)
        if tensors is not None:
            tensors.put("first" if model.training else "held out", prediction[:1], b"meta")
        self.predictions.append(prediction[0].item())
        self.graphs.append(weakref.ref(prediction))
        return loss, prediction


@pytest.mark.req("NT-SUMOP-T4")
def test_tensors_of_a_run_are_written_at_each_report():
    sink = fit(task := Recording(), log_every=2)
    assert [step for step, _ in sink.tensors] == [2, 4, 6]
    wanted = [task.predictions[i] for i in (1, 3, 5)]  # the last step of each interval
    assert [summary.tensor.item() for _, summary in sink.tensors] == wanted


@pytest.mark.req("NT-SUMOP-T4")
def test_tensors_of_a_run_that_fails_are_written():
    sink = MemorySink()
    with pytest.raises(KeyError):
        fit(Recording(), Raise(3, KeyError()), sink=sink, log_every=100)
    assert [step for step, _ in sink.tensors] == [3]


def test_tensors_of_evaluations_are_left_out():
    sink = fit(Recording(held_out=clicks(1, seed=5)), eval_every=1, log_every=1)
    assert [summary.tag for _, summary in sink.tensors] == ["first"] * 6


def test_tensors_are_collected_for_a_sink_that_writes_them_only():
    class Plain(MemorySink):
        writes_tensors = False

    for sink, num_tensors in ((Plain(), 0), (MemorySink(), 1)):
        with Trainer(task := Recording(), metrics=sink) as trainer:
            trainer.fit()
            assert SUMMARIES not in trainer.run.metadata
        assert (len(task.predictions), len(sink.tensors)) == (6, num_tensors)


@pytest.mark.req("NT-SUMOP-T4")
def test_no_graph_is_kept():
    class Watching(ReportHook):
        def before_run(self, ctx):
            gc.collect()
            assert not [graph for graph in task.graphs if graph() is not None]

    task = Recording()
    fit(task, Watching(), log_every=100)
    assert len(task.graphs) == 6


def test_the_times_of_lookups_on_servers_are_measured_by_server():
    sink = MemorySink()
    with Trainer(Clicks(), servers=2, metrics=sink) as trainer:
        trainer.fit()
    tags = [{"model_name": "Clicks", "ps": server} for server in ("0", "1")]
    assert [sink.summary("embedding_lookup", tag).num_times for tag in tags] == [6, 6]
