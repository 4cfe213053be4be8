import dataclasses
import json
import subprocess
import sys

import pytest

from monolith.observe import TensorBoardSink
from monolith.train import ReportHook, Trainer, TrainSettings
from tests.observe.tensorboard_reader import RunReader
from tests.train.recorded import INSIGHT, LOG_EVERY, NAS, Recorded
from tests.train.resumable import SETTINGS, Clicks
from tests.train.tasks import Raise
from tests.train.test_recovery import Fault

SCALARS = ("loss", "auc", "log_loss", "calibration", "samples_per_second", "staleness")


class Reports(ReportHook):
    def __init__(self):
        self.all = []

    def report(self, figures):
        self.all.append(figures)


def fit(folder, task, *hooks):
    with (
        TensorBoardSink(folder) as sink,
        Trainer(task, TrainSettings(log_every=LOG_EVERY), metrics=sink, hooks=hooks) as trainer,
    ):
        trainer.fit()


def read(folder):
    return RunReader(folder, plugins=("monolith",))


def steps(reader, tag):
    return [step for step, _ in reader.values(tag)]


@pytest.mark.req("NT-SUMOP-T4")
def test_scalars_and_summaries_are_in_one_file_at_the_steps_of_the_reports(tmp_path):
    fit(tmp_path, Recorded(8))
    assert len(list(tmp_path.iterdir())) == 1
    reader = read(tmp_path)
    for tag in (*(f"train/{name}" for name in SCALARS), "tables/rows", NAS, INSIGHT):
        assert [step for step in steps(reader, tag) if step] == [3, 6, 8], tag


@pytest.mark.req("NT-SUMOP-T4")
def test_scalars_are_the_figures_of_the_reports(tmp_path):
    fit(tmp_path, Recorded(8), reports := Reports())
    reader = read(tmp_path)
    for name, value in (("train/loss", lambda f: f.loss), ("tables/rows", lambda f: f.num_rows)):
        wanted = [(f.step, pytest.approx(value(f))) for f in reports.all]
        assert [(step, float(scalar)) for step, scalar in reader.values(name)] == wanted


@pytest.mark.req("NT-SUMOP-T4")
def test_summaries_are_those_of_the_last_step_before_a_report(tmp_path):
    fit(tmp_path, task := Recorded(8))
    reader = read(tmp_path)
    written = [tensor.tolist() for _, tensor in reader.values(NAS)]
    assert written == [task.weights[i] for i in (2, 5, 7)]
    content = json.loads(reader.tensors("monolith")[NAS].plugin_content)
    assert content["segment_names"] == ["user", "item"]
    assert [tensor.shape for _, tensor in reader.values(INSIGHT)] == [(8, 3)] * 3


def test_a_recovery_that_goes_back_leaves_one_value_for_each_step(tmp_path):
    settings = dataclasses.replace(SETTINGS, checkpoint_dir=str(tmp_path / "saves"), log_every=1)
    with (
        TensorBoardSink(tmp_path / "logs") as sink,
        Trainer(Clicks("plain"), settings, metrics=sink) as trainer,
    ):
        fault = Fault("table", step=8)  # the newest checkpoint is that of step 5
        fault.attach(trainer)
        result = trainer.fit()
    assert result.num_recoveries == 1
    assert steps(read(tmp_path / "logs"), "train/loss") == list(range(1, result.num_steps + 1))


def test_a_run_that_goes_on_after_a_failure_leaves_one_value_for_each_step(tmp_path):
    settings = dataclasses.replace(SETTINGS, checkpoint_dir=str(tmp_path / "saves"), log_every=4)
    for hooks in ([Raise(7, KeyError("as asked"))], []):
        with (
            TensorBoardSink(tmp_path / "logs") as sink,
            Trainer(Clicks("plain"), settings, metrics=sink, hooks=hooks) as trainer,
        ):
            if hooks:
                with pytest.raises(KeyError):
                    trainer.fit()
                assert steps(read(tmp_path / "logs"), "train/loss") == [4, 7]
            else:
                trainer.restore(tmp_path / "saves")  # of step 5
                last = trainer.run.global_step + trainer.fit().num_steps
    reader = read(tmp_path / "logs")
    wanted = [4, *range(8, last, 4), last]
    assert steps(reader, "train/loss") == wanted
    assert [step for step, _ in reader.values("run_failed")] == []


@pytest.mark.req("NT-SUMOP-T4")
def test_a_run_that_fails_is_written_to_its_last_step(tmp_path):
    with pytest.raises(KeyError, match="as asked"):
        fit(tmp_path, Recorded(8), Raise(5, KeyError("as asked")))
    reader = read(tmp_path)
    assert steps(reader, "train/loss") == steps(reader, NAS) == [3, 5]
    ((step, text),) = reader.values("run_failed")
    assert step == 5
    assert b"as asked" in text.item()


@pytest.mark.dist
@pytest.mark.req("NT-SUMOP-T4")
def test_a_run_that_is_killed_is_written_to_its_last_report(tmp_path):
    command = [sys.executable, "-m", "tests.train.recorded", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert [process.stdout.readline() for _ in range(5)] == [f"{i}\n" for i in range(1, 6)]
        process.kill()
    reader = read(tmp_path)
    assert steps(reader, "train/loss") == steps(reader, NAS) == steps(reader, INSIGHT) == [3]
