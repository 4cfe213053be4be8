"""`run_worker` over servers that are threads of this process."""

import pytest
import torch

from monolith.checkpoint import find
from monolith.errors import InvalidArgumentError
from monolith.train import Hook, Trainer, TrainSettings
from monolith.train.roles.worker import run_worker
from tests.cluster.job.running_job import RunningJob
from tests.train.tasks import Clicks, clicks

pytestmark = pytest.mark.dist


@pytest.fixture
def start():
    """(number of servers, of workers) -> servers that know the task; they end with the test."""
    started = []

    def start(num_servers, num_workers=1):
        task = Clicks()
        make = {"make_model": task.build, "make_optimizer": task.optimizer}
        started.append(RunningJob(num_servers, num_workers, **make))
        return started[-1]

    yield start
    for running in started:
        running.close()


def settings_of(tmp_path, **more):
    return TrainSettings(checkpoint_dir=str(tmp_path), seed=1, **more)


def test_a_worker_alone_trains_to_the_end_and_ends_the_servers(start, tmp_path):
    running = start(2)
    seen = []
    report = run_worker(
        Clicks(),
        settings_of(tmp_path),
        running.servers(),
        began=lambda trainer: seen.append(trainer.run.global_step),
        then=lambda trainer: "evaluated",
    )
    assert report.counts == {
        "steps": 6,
        "samples": 48,
        "repeats": 0,
        "lost_pushes": 0,
        "dropped": 0,
    }
    assert (report.evaluation, len(seen)) == ("evaluated", 1)
    assert all(host.is_job_ended for host in running.hosts)
    assert find(tmp_path).prefix.endswith("-6")


class Overtaken(Clicks):
    """A task in whose steps the dense parameters of the servers make two steps of others."""

    def loss(self, model, inputs, batch):
        for host in self.hosts:
            host._dense.version += 2
        return super().loss(model, inputs, batch)


def test_the_staleness_of_a_step_is_that_of_its_dense_parameters_if_it_is_larger(start, tmp_path):
    running, task, seen = start(2), Overtaken(), []
    task.hosts = running.hosts
    note = Note(lambda results: seen.append(results.value.staleness))
    report = run_worker(task, settings_of(tmp_path), running.servers(), hooks=[note])
    assert seen == [2] * 6
    assert report.result.figures.staleness == 2


class Note(Hook):
    """Calls a function with the results of each step."""

    def __init__(self, call):
        self._call = call

    def after_run(self, ctx, results):
        self._call(results)


@pytest.mark.parametrize("num_servers", [1, 3])
def test_a_job_goes_on_with_another_number_of_servers(start, tmp_path, num_servers):
    first = settings_of(tmp_path, steps=4)
    run_worker(Clicks(clicks(9)), first, start(2).servers())
    rest = start(num_servers)
    checkpoint = find(tmp_path)
    report = run_worker(
        Clicks(clicks(9)), settings_of(tmp_path, steps=9), rest.servers(), checkpoint=checkpoint
    )
    assert report.counts["steps"] == 9
    assert report.counts["samples"] == 72
    assert find(tmp_path).prefix.endswith("-9")


def test_a_job_of_one_worker_has_the_bits_of_a_local_run(start, tmp_path):
    torch.manual_seed(1)
    with Trainer(Clicks(), TrainSettings(seed=1)) as trainer:
        trainer.fit()
        expected = [value.clone() for value in trainer.model.parameters()]
    values = []

    def note(trainer):
        values.extend(value.clone() for value in trainer.model.parameters())

    run_worker(Clicks(), settings_of(tmp_path), start(2).servers(), then=note)
    assert all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))


def test_a_worker_with_another_model_is_refused(start, tmp_path):
    class Wide(Clicks):
        def build(self):
            return torch.nn.Sequential(torch.nn.Linear(9, 2), torch.nn.Linear(2, 1))

    with pytest.raises(InvalidArgumentError, match=r"\(1, 9\)', got 'parameter 0.weight"):
        run_worker(Wide(), settings_of(tmp_path), start(1).servers())
