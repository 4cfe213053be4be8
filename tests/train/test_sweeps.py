"""Expired rows are removed when the clock of the run passes full hours."""

import pytest
import torch

from monolith.data import Batch
from monolith.errors import AbortedError
from monolith.nn import Feature
from monolith.ops import Ragged
from monolith.table import Expiry
from monolith.train import Hook, Task, Trainer, TrainSettings

HOUR = 3600


class Counted(Task):
    """A sample each half an hour, each with an id of its own; rows expire at once."""

    features = (Feature("a", dim=1, expiry=Expiry(0)), Feature("b", dim=1, expiry=Expiry(0)))
    evict_every_hours = {"a": 2}

    def __init__(self, num_steps=10):
        super().__init__()
        self.num_steps, self.rows = num_steps, []

    def source(self, mode):
        for step in range(self.num_steps):
            ids = Ragged.from_lists([[step]])
            time = torch.tensor([100 * HOUR + step * HOUR // 2])
            yield Batch({"a": ids, "b": ids}, labels={"label": torch.ones(1)}, time=time)

    def build(self):
        return torch.nn.Identity()

    def loss(self, model, inputs, batch):
        tables = self.trainer.features.tables
        self.rows.append(tuple(len(table) for table in tables.values()))
        score = inputs.pooled["a"].squeeze(1) + inputs.pooled["b"].squeeze(1)
        return score.sum(), score


def rows_before_each_step(servers=None):
    task = Counted()
    with Trainer(task, TrainSettings(), servers) as task.trainer:
        task.trainer.fit()
    return task.rows


@pytest.mark.parametrize("servers", [None, 2])
def test_a_table_is_swept_at_full_hours_and_others_are_not(servers):
    # The clock is at 102 h in the fifth step, at 104 h in the ninth: the hook comes after it.
    expected = [0, 1, 2, 3, 4, 0, 1, 2, 3, 0]
    assert rows_before_each_step(servers) == list(zip(expected, range(10), strict=True))


def test_a_resumed_run_sweeps_as_the_whole_run(tmp_path):
    whole = rows_before_each_step()
    first = Counted()
    with Trainer(first, TrainSettings(steps=4)) as first.trainer:
        first.trainer.fit()
        first.trainer.save(tmp_path)
    second = Counted()
    with Trainer(second) as second.trainer:
        second.trainer.restore(tmp_path)
        list_source = iter(list(Counted().source("train"))[4:])
        second.trainer.fit(list_source)
    assert first.rows + second.rows == whole


def test_a_run_that_recovers_after_a_full_hour_sweeps_as_the_whole_run():
    class FailAfter(Hook):
        def after_run(self, ctx, results):
            if ctx.run.global_step == 5 and not ctx.run.num_recoveries:  # the clock is at 102 h
                raise AbortedError("gone")

    task = Counted()
    with Trainer(task) as task.trainer:
        assert task.trainer.fit(hooks=[FailAfter()]).num_recoveries == 1
    assert task.rows == rows_before_each_step()


@pytest.mark.parametrize(
    ("hours", "error", "text"),
    [
        (
            {"c": 1},
            ValueError,
            r"expected tables of the task in evict_every_hours \(a, b\), got 'c'",
        ),
        ({"a": 0}, ValueError, r"expected evict_every_hours >= 1, got 0 \(table 'a'\)"),
        ({"a": 0.5}, TypeError, r"expected evict_every_hours as an integer, got 0.5 \(table 'a'\)"),
    ],
)
def test_wrong_hours_are_refused_at_the_start(hours, error, text, monkeypatch):
    monkeypatch.setattr(Counted, "evict_every_hours", hours)
    with pytest.raises(error, match=text):
        Trainer(Counted())
