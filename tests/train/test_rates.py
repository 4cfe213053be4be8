"""Learning rates that change in the task between a save and the run that goes on with it."""

import pytest
import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    MultiStepLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

from monolith.nn import Feature
from monolith.optim import RmspropOptimizer
from monolith.table import Segment
from monolith.table.optimizers import SGD, Adagrad
from monolith.train import Hook, Trainer, TrainSettings
from tests.train.tasks import Clicks, clicks, state_of


def task(dense=0.01, user=0.1, schedule=None, of_user=None):
    """Return a task with these learning rates: numbers, tensors or functions."""
    begin = schedule

    class Rated(Clicks):
        features = (
            Feature("user", dim=4, optimizer=of_user or Adagrad(user)),
            Feature("item", dim=4, optimizer=Adagrad(0.1)),
        )

        def optimizer(self, model):
            return torch.optim.Adam(model.parameters(), lr=dense)

        def schedule(self, optimizer):
            return begin and begin(optimizer)

    return Rated()


def rates_of(trainer):
    return [group["lr"] for group in trainer.optimizer.param_groups]


def fitted(rated, steps, path=None, hooks=(), source=None):
    """Return rates and state after some steps; save a checkpoint if there is a path."""
    with Trainer(rated, TrainSettings(steps=steps), clock=lambda: 100) as trainer:
        trainer.fit(source or clicks(6), hooks=hooks)
        if path is not None:
            trainer.save(path)
        return rates_of(trainer), state_of(trainer)


def resumed(rated, path):
    """Return the rates after a restore, without a step."""
    with Trainer(rated) as trainer:
        trainer.restore(path)
        return rates_of(trainer)


def test_changed_rates_are_those_of_the_task(tmp_path, caplog):
    fitted(task(dense=0.01, user=0.1), 3, tmp_path)
    assert resumed(task(dense=0.02, user=0.3), tmp_path) == [0.02, 0.3, 0.1]
    assert [record.getMessage() for record in caplog.records] == [
        "learning rate of group 0 of the dense parameters: 0.01 -> 0.02 since the checkpoint; "
        "the task file's counts",
        "learning rate of table 'user': 0.1 -> 0.3 since the checkpoint; the task file's counts",
    ]


def test_a_run_goes_on_as_with_rates_that_a_hook_changed(tmp_path):
    class Change(Hook):
        def after_run(self, ctx, results):
            if ctx.run.global_step == 3:
                trainer.optimizer.param_groups[0]["lr"] = 0.02
                trainer.optimizer.param_groups[1]["lr"] = 0.3

    batches = clicks(6)
    with Trainer(task(0.01, 0.1), clock=lambda: 100) as trainer:
        trainer.fit(batches, hooks=[Change()])
        expected = state_of(trainer)
    fitted(task(0.01, 0.1), 3, tmp_path, source=batches)
    with Trainer(task(0.02, 0.3), clock=lambda: 100) as other:
        other.restore(tmp_path)
        other.fit(batches[3:])
        assert state_of(other) == expected


def test_without_a_change_a_rate_that_a_hook_set_stays(tmp_path, caplog):
    class Halve(Hook):
        def after_run(self, ctx, results):
            trainer.optimizer.param_groups[1]["lr"] *= 0.5

    with Trainer(task()) as trainer:
        trainer.fit(clicks(2), hooks=[Halve()])
        trainer.save(tmp_path)
    assert resumed(task(), tmp_path) == [0.01, 0.025, 0.1]
    assert caplog.text == ""


def sequence(optimizer):
    first = ConstantLR(optimizer, 0.5, total_iters=2)
    return SequentialLR(optimizer, [first, ExponentialLR(optimizer, 0.9)], milestones=[2])


def chain(optimizer):
    return ChainedScheduler([StepLR(optimizer, 2), ExponentialLR(optimizer, 0.9)])


SCHEDULES = {
    "step": lambda optimizer: StepLR(optimizer, 2, gamma=0.7),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, 9, eta_min=0.001),
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "sequence": sequence,
    "chain": chain,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_as_if_it_had_begun_with_the_changed_rate(name, tmp_path):
    fitted(task(0.01, 0.1, SCHEDULES[name]), 4, tmp_path)
    expected, _ = fitted(task(0.02, 0.3, SCHEDULES[name]), 6)
    with Trainer(task(0.02, 0.3, SCHEDULES[name]), TrainSettings(steps=6)) as trainer:
        trainer.restore(tmp_path)
        trainer.fit(clicks(6))
        assert trainer.run.global_step == 6
        assert rates_of(trainer) == expected


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_a_change_a_schedule_goes_on_silently(name, tmp_path, caplog):
    saved, _ = fitted(task(schedule=SCHEDULES[name]), 4, tmp_path)
    assert resumed(task(schedule=SCHEDULES[name]), tmp_path) == saved
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (
            lambda optimizer: StepLR(optimizer, 2, gamma=0.7),
            lambda optimizer: StepLR(optimizer, 2, gamma=0.1),
            "schedule.gamma: 0.7 -> 0.1 since",
        ),
        (
            lambda optimizer: MultiStepLR(optimizer, [2]),
            lambda optimizer: MultiStepLR(optimizer, [3]),
            "schedule.milestones.2: 1 -> none since",
        ),
        (
            lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=9),
            lambda optimizer: OneCycleLR(optimizer, 0.2, total_steps=9),
            "table 'user': 0.004 -> 0.008 since",
        ),
        (
            lambda optimizer: CyclicLR(optimizer, 0.01, 0.1, 3, cycle_momentum=False),
            lambda optimizer: CyclicLR(optimizer, 0.01, 0.2, 3, cycle_momentum=False),
            "schedule.max_lrs.1: 0.1 -> 0.2 since",
        ),
        (
            lambda optimizer: StepLR(optimizer, 2, gamma=0.7),
            lambda optimizer: ExponentialLR(optimizer, 0.7),
            "schedule: StepLR -> ExponentialLR since",
        ),
        (
            lambda optimizer: StepLR(optimizer, 2, gamma=0.7),
            None,
            "schedule: StepLR -> none since",
        ),
    ],
)
def test_a_changed_schedule_is_that_of_the_task(before, after, line, tmp_path, caplog):
    fitted(task(schedule=before), 4, tmp_path)
    expected, _ = fitted(task(schedule=after), 4)
    assert resumed(task(schedule=after), tmp_path) == expected
    assert line in caplog.text


def test_a_changed_schedule_of_a_table_is_logged(tmp_path, caplog):
    fitted(task(of_user=SGD(0.1, warmup_steps=10)), 3, tmp_path)
    resumed(task(of_user=SGD(0.2, warmup_steps=10)), tmp_path)
    assert "table 'user': LearningRateFunction(" in caplog.text
    assert "initial_learning_rate=0.0" in caplog.text
    assert "end_learning_rate=0.2" in caplog.text


def test_a_function_in_place_of_a_number_is_logged_by_its_name(tmp_path, caplog):
    fitted(task(user=0.1), 3, tmp_path)
    resumed(task(user=lambda step: 0.1), tmp_path)
    assert "table 'user': 0.1 -> " in caplog.text
    assert "<lambda> since the checkpoint" in caplog.text


def test_a_rate_that_is_a_function_is_no_change(tmp_path, caplog):
    class Called(Clicks):
        def optimizer(self, model):
            return RmspropOptimizer(model.parameters(), learning_rate=lambda: 0.1)

    fitted(Called(), 1, tmp_path)
    resumed(Called(), tmp_path)
    assert caplog.text == ""


def test_a_rate_that_is_a_tensor_stays_one(tmp_path):
    fitted(task(dense=torch.tensor(0.5)), 3, tmp_path)
    rate = resumed(task(dense=torch.tensor(0.25)), tmp_path)[0]
    assert torch.equal(rate, torch.tensor(0.25))


def test_segments_are_logged_by_their_names(tmp_path, caplog):
    class Sliced(Clicks):
        features = (
            Feature("user", slices=[Segment(2, SGD(0.1)), Segment(2, SGD(0.2))]),
            Feature("item", dim=4),
        )

    class Changed(Sliced):
        features = (
            Feature("user", slices=[Segment(2, SGD(0.1)), Segment(2, SGD(0.3))]),
            Feature("item", dim=4),
        )

    fitted(Sliced(), 1, tmp_path)
    resumed(Changed(), tmp_path)
    assert "learning rate of segment '1' of table 'user': 0.2 -> 0.3" in caplog.text


def test_an_older_checkpoint_is_compared_by_the_rates_of_its_optimizer(tmp_path, caplog):
    saved, _ = fitted(task(schedule=SCHEDULES["step"]), 4, tmp_path)
    with Trainer(task(schedule=SCHEDULES["step"])) as trainer:
        trainer.restore(tmp_path)
        trainer.rates.take_over(None, 4)
        assert (rates_of(trainer), caplog.text) == (saved, "")
        trainer.optimizer.param_groups[1]["initial_lr"] = 0.3  # as of another task
        trainer.rates.take_over(None, 4)
    assert "table 'user': 0.3 -> 0.1 since the checkpoint" in caplog.text
