"""Progressive scores of a run: of predictions from before the step, over windows, and a resume."""

import pyarrow as pa
import pytest
import torch

from monolith import data
from monolith.errors import InvalidArgumentError
from monolith.observe import MemorySink
from monolith.observe.learning import Auc, LogLoss
from monolith.train import ReportHook, Trainer, TrainSettings
from monolith.train.online.online_hook import check_scores
from tests.train.tasks import Clicks, Counting, StopAfter, clicks


class Mean:
    """A metric: mean of the predictions."""

    def __init__(self):
        self.values = []

    def update(self, predictions, labels, *, weights=None):
        self.values += predictions.tolist()

    @property
    def value(self):
        return sum(self.values) / len(self.values)


class Counted(Counting):
    """A task whose prediction is minus the number of updates that the lookup has seen."""

    def metrics(self):
        return {"mean": Mean()}


class Keep(ReportHook):
    """Keeps predictions and labels of all steps, and the windows of all reports."""

    def __init__(self):
        self.outputs, self.windows = [], []

    def after_run(self, ctx, results):
        self.outputs += [(part.prediction, part.batch.label) for part in results.value.parts]

    def report(self, figures):
        self.windows.append(figures.windows)


def pipeline(num=64):
    random = torch.Generator().manual_seed(3)
    columns = {
        "user": torch.randint(0, 20, (num,), generator=random).numpy(),
        "item": torch.randint(0, 10, (num,), generator=random).numpy(),
        "hour": torch.rand(num, generator=random).numpy(),
        "click": torch.randint(0, 2, (num,), generator=random).float().numpy(),
    }
    return data.arrow_table(pa.table(columns)).batch(8)


def history(sink, name="progressive/auc", window="samples"):
    return sink.history(name, {"window": window})


def test_a_batch_is_scored_before_it_is_learned():
    sink = MemorySink()
    with Trainer(Counted(6), TrainSettings(score_samples=1), metrics=sink) as trainer:
        trainer.fit()
    numbers = [(step, -step + 1) for step in range(1, 7)]
    assert history(sink, "progressive/mean") == numbers


def test_scores_of_windows_go_to_the_sink_at_the_step_of_their_end():
    sink, keep = MemorySink(), Keep()
    settings = TrainSettings(score_samples=20, log_every=0)
    with Trainer(Clicks(clicks(6)), settings, hooks=[keep], metrics=sink) as trainer:
        trainer.fit()
    predictions, labels = (torch.cat(part) for part in zip(*keep.outputs, strict=True))
    assert [step for step, _ in history(sink)] == [3, 5]
    for number, (name, metric) in enumerate([("auc", Auc()), ("log_loss", LogLoss())]):
        start = 20 * number
        metric.update(predictions[start : start + 20], labels[start : start + 20])
        assert history(sink, f"progressive/{name}")[number][1] == metric.value
    assert history(sink, "progressive/samples") == [(3, 20.0), (5, 20.0)]


def test_figures_have_the_last_window():
    keep = Keep()
    settings = TrainSettings(score_samples=16, log_every=3)
    with Trainer(Clicks(clicks(6)), settings, hooks=[keep]) as trainer:
        trainer.fit()
    assert [windows["samples"].number for windows in keep.windows] == [0, 2]


def test_windows_of_time_are_those_of_the_samples():
    times = [torch.full((8,), 60 * minute) for minute in (1, 1, 2, 4)]
    batches = [clicks(1, seed=i, time=time)[0] for i, time in enumerate(times)]
    sink = MemorySink()
    with Trainer(Clicks(batches), TrainSettings(score_seconds=60), metrics=sink) as trainer:
        trainer.fit()
    wanted = [(3, 16.0), (4, 8.0)]
    assert history(sink, "progressive/samples", "time") == wanted


def test_files_are_not_scored_by_windows_unless_asked():
    sink = MemorySink()
    with Trainer(Clicks(clicks(6)), metrics=sink) as trainer:
        result = trainer.fit()
    assert result.figures.windows == {}
    assert not [name for name in sink.names if name.startswith("progressive/")]


@pytest.mark.parametrize("stop_after", [1, 4, 7])
def test_scores_go_on_over_a_resume(tmp_path, stop_after):
    def run(folder, *hooks, restores=False):
        sink = MemorySink()
        settings = TrainSettings(score_samples=20, checkpoint_dir=str(tmp_path / folder))
        with Trainer(Clicks(pipeline()), settings, hooks=hooks, metrics=sink) as trainer:
            if restores:
                trainer.restore(tmp_path / folder)
            trainer.fit()
        return history(sink) + history(sink, "progressive/calibration")

    wanted = run("whole")
    first = run("killed", StopAfter(stop_after))
    both = sorted(first + run("killed", restores=True))
    assert len(wanted) == 6
    assert both == sorted(wanted)


def test_scores_of_a_rank_are_refused():
    with Trainer(Clicks(), TrainSettings(score_samples=5)) as trainer:
        with pytest.raises(InvalidArgumentError, match="with ranks, got 5 and None"):
            check_scores(trainer.trainee, has_ranks=True)
        check_scores(trainer.trainee, has_ranks=False)
