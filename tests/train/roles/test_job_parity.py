"""Jobs of real processes learn what the trainer of one process learns."""

import pytest
import torch

from monolith.train import Trainer, TrainSettings
from tests.suites.table_base import assert_equal_rows, exported
from tests.train.roles.job_tasks import Counted, JobSettings, Rich

pytestmark = pytest.mark.dist

FEW = {"accumulate": 2, "clip_norm": 0.5}


def flat(value, path=""):
    """Yield (path, leaf) of nested values."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from flat(item, f"{path}/{name}")
    else:
        yield path, value


def assert_same_values(one, other):
    one, other = dict(flat(one)), dict(flat(other))
    assert one.keys() == other.keys()
    for path, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[path]), path
        else:
            assert value == other[path], path


def assert_same_trainers(one, other):
    """Compare rows with their state, model, optimizer, schedule and steps."""
    for name, table in one.features.tables.items():
        assert_equal_rows(exported(table), exported(other.features.tables[name]))
    assert_same_values(one.model.state_dict(), other.model.state_dict())
    assert_same_values(one.optimizer.state_dict(), other.optimizer.state_dict())
    if one.scheduler is not None:
        assert_same_values(one.scheduler.state_dict(), other.scheduler.state_dict())
    assert one.run.global_step == other.run.global_step


def task_of(task_class, data, **settings):
    return task_class(JobSettings(data={"train": data}, **settings))


@pytest.mark.req("TS-CPUDIST-T5")
@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_a_sequential_job_of_one_worker_ends_as_the_local_trainer(nursery, samples, optimizer):
    data = samples(400)
    settings = {f"train.{name}": value for name, value in FEW.items()} | {"optimizer": optimizer}
    with nursery.job(data, 2, 1, task="Rich", settings=settings) as job:
        ended = job.run()
    assert (ended["num_steps"], ended["job"]["samples"]) == (25, 400)
    how = TrainSettings(threads=1, **FEW)
    with (
        Trainer(task_of(Rich, data, optimizer=optimizer), how) as local,
        Trainer(task_of(Rich, data, optimizer=optimizer), how) as restored,
    ):
        local.fit()
        restored.restore(job.saves)
        assert_same_trainers(restored, local)


def held_out_loss(data, held_out, *, saves=None, **settings):
    """Train here, or take a checkpoint; return the loss of held-out samples."""
    task = task_of(Counted, data, batch_size=24)
    task.settings.data["eval"] = held_out
    with Trainer(task, TrainSettings(threads=1, **settings)) as trainer:
        if saves is None:
            trainer.fit()
        else:
            trainer.restore(saves)
        return trainer.evaluate()["loss"]


@pytest.mark.req("TS-CPUDIST-T5")
def test_an_asynchronous_job_of_two_workers_is_within_the_spread_of_local_seeds(nursery, samples):
    held_out = samples(1000, seed=100)
    losses = [held_out_loss(samples(2400, seed), held_out, seed=seed) for seed in range(5)]
    spread = max(losses) - min(losses)
    data, settings = samples(2400, seed=5), {"train.prefetch": 2, "train.push": 1}
    settings |= {"train.seed": 5, "batch_size": 24}
    with nursery.job(data, 2, 2, settings=settings) as job:
        assert job.run()["job"]["samples"] == 2400
    loss = held_out_loss(data, held_out, saves=job.saves)
    print(f"losses of local seeds {losses}, of the job {loss}")
    assert max(losses) < 0.65  # they have learned
    assert min(losses) - spread < loss < max(losses) + spread
