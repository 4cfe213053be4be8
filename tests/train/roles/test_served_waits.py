"""Runs that wait for data of a service, and that are stopped and saved meanwhile."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from monolith.control import ADDRESS_FILE, ControllerClient, ControlOptions
from monolith.train import Trainer, TrainSettings
from monolith.train.roles.served_data import training_data
from monolith.train.roles.worker import WorkerOptions, _facts_of, run_worker
from tests.cluster.data_service.services import pipeline, service, users_of, write_files
from tests.cluster.job.running_job import RunningJob
from tests.train.roles.job_tasks import wait_for
from tests.train.roles.test_served_data import NUM_SAMPLES, Seen, Users

pytestmark = [pytest.mark.dist, pytest.mark.req("TS-SRVLIB-T3")]


@pytest.fixture
def task(tmp_path):
    return Users(write_files(tmp_path / "data", num_files=9))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "saves"


def stop_and_save(folder, step):
    """Stop a run that waits, save while it stands, and let it go on."""
    wait_for(lambda: (folder / ADDRESS_FILE).exists(), 20)
    with ControllerClient(str(folder), timeout_seconds=20.0) as client:
        wait_for(lambda: client.status().step == step, 20)
        client.stop()
        try:
            wait_for(lambda: client.status().workers[0].state.value == "parked", 20)
            assert client.save().step == step
        finally:
            client.resume()


class Held:
    """Data of which the batches after the first two come when `go` is set."""

    def __init__(self, batches):
        self._batches, self.go = batches, threading.Event()

    def __iter__(self):
        for number, batch in enumerate(self._batches):
            assert number < 2 or self.go.wait(60)
            yield batch


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_run_stands_and_saves_while_it_waits_for_a_batch(task, folder, prefetch):
    data, seen = Held(training_data(task)), Seen()
    settings = TrainSettings(checkpoint_dir=str(folder), prefetch=prefetch)
    with (
        service(lambda _: data, 1, timeout_seconds=5.0) as (source, _, _),
        ThreadPoolExecutor() as pool,
        Trainer(task, settings, hooks=[seen], control=ControlOptions()) as trainer,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(data.go.set)
        fit = pool.submit(trainer.fit, source)
        stop_and_save(folder, step=1)  # the second batch is held: is it the last?
        data.go.set()
        fit.result(60)
    assert seen.users == users_of(pipeline(task.folder))


def test_a_chief_that_waits_for_a_share_stands_and_saves(task, folder):
    def take_all(trainer):
        other = running.client(1, facts=_facts_of(trainer))
        others.append(other)
        with iter(source) as batches:
            names, num_epochs = batches._clients.shares()
        trainer.job.offer(names, num_epochs)
        for _ in names:
            assert other.take().kind == "share"

    make, others = {"make_model": task.build, "make_optimizer": task.optimizer}, []
    settings = TrainSettings(checkpoint_dir=str(folder), seed=1)
    options = {"options": WorkerOptions(control=ControlOptions()), "began": take_all}
    with (
        contextlib.closing(RunningJob(1, 2, **make)) as running,
        service(lambda _: training_data(task)) as (source, _, _),
        ThreadPoolExecutor() as pool,
    ):
        chief = pool.submit(run_worker, task, settings, running.servers(), source=source, **options)
        try:
            stop_and_save(folder, step=0)
        finally:
            others[0].close()  # its shares go to the chief
        assert chief.result(60).counts["samples"] == NUM_SAMPLES
