"""Runs and jobs whose batches are read by data workers, which are threads of this process."""

import contextlib
from itertools import islice

import pytest
import torch

from monolith.checkpoint import find
from monolith.errors import FailedPreconditionError
from monolith.nn import Feature
from monolith.train import Task, Trainer, TrainSettings
from monolith.train.driver import Hook
from monolith.train.ranks.rank_source import position_of_shares
from monolith.train.roles.job_source import BeginAt
from monolith.train.roles.served_data import training_data, worker_batches
from monolith.train.roles.worker import run_worker
from tests.cluster.data_service.services import pipeline, service, users_of, write_files
from tests.cluster.job.running_job import RunningJob

pytestmark = pytest.mark.dist

NUM_SAMPLES = 180  # of 9 files


class Users(Task):
    features = (Feature("user", dim=2),)
    dense = ("price",)

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def source(self, mode):
        return pipeline(self.folder)

    def build(self):
        torch.manual_seed(3)
        return torch.nn.Linear(3, 1)

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 0.1)

    def loss(self, model, inputs, batch):
        logit = model(inputs.matrix).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, batch.label)
        return loss, logit.sigmoid()


class Seen(Hook):
    """Notes the users that were trained; stops after some steps."""

    def __init__(self, steps=None):
        self.users, self._steps = [], steps

    def after_run(self, ctx, results):
        self.users += users_of(part.batch for part in results.value.parts)
        if ctx.run.global_step == self._steps:
            ctx.request_stop()


@pytest.fixture
def task(tmp_path):
    return Users(write_files(tmp_path / "data", num_files=9))


@contextlib.contextmanager
def served(task, num_workers=2):
    with service(lambda _: training_data(task), num_workers) as (source, _, _):
        yield source


def weights_of(trainer):
    return [value.clone() for value in trainer.model.parameters()]


def test_one_data_worker_gives_the_bits_of_a_local_run(task):
    with Trainer(task, TrainSettings(seed=1)) as trainer:
        trainer.fit()
        expected = weights_of(trainer)
    with served(task, num_workers=1) as source, Trainer(task, TrainSettings(seed=1)) as trainer:
        trainer.fit(source)
        assert all(map(torch.equal, weights_of(trainer), expected))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_run_that_is_resumed_trains_each_sample_once(task, tmp_path, prefetch):
    settings = TrainSettings(checkpoint_dir=str(tmp_path / "saves"), prefetch=prefetch)
    first, rest = Seen(steps=13), Seen()
    with served(task) as source:
        with Trainer(task, settings, hooks=[first]) as trainer:
            trainer.fit(source)
        with Trainer(task, settings, hooks=[rest]) as trainer:
            trainer.restore(str(tmp_path / "saves"))
            trainer.fit(source)
    assert sorted([*first.users, *rest.users]) == sorted(users_of(pipeline(task.folder)))
    assert len(first.users) == 13 * 5


def test_a_run_of_one_reader_goes_on_without_the_service_and_with_it(task, tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path / "saves"))
    hooks = [Seen(steps=7), Seen(steps=11), Seen()]
    with served(task, num_workers=1) as source:
        for hook, samples in zip(hooks, [source, None, source], strict=True):
            with Trainer(task, settings, hooks=[hook]) as trainer:
                if find(tmp_path / "saves") is not None:
                    trainer.restore(str(tmp_path / "saves"))
                trainer.fit(samples)
    assert [user for hook in hooks for user in hook.users] == users_of(pipeline(task.folder))


def test_positions_of_other_data_are_refused(task, tmp_path):
    local = iter(pipeline(task.folder))
    next(local)
    with served(task) as source:
        with pytest.raises(FailedPreconditionError, match="divides the data into 9 shares"):
            source.resume(local.state_dict())
        with iter(source) as batches:
            next(batches)
            state = batches.state_dict()
    write_files(task.folder, num_files=10)
    with served(task) as source, pytest.raises(FailedPreconditionError, match="other shares of it"):
        source.resume(state)


@pytest.fixture
def job(task):
    """(number of workers) -> servers that know the task; they end with the test."""
    with contextlib.ExitStack() as stack:

        def start(num_workers=1):
            make = {"make_model": task.build, "make_optimizer": task.optimizer}
            return stack.enter_context(contextlib.closing(RunningJob(1, num_workers, **make)))

        yield start


def test_a_job_reads_from_the_service(task, job, tmp_path):
    seen = Seen()
    settings = TrainSettings(checkpoint_dir=str(tmp_path / "saves"), seed=1)
    with served(task) as source:
        report = run_worker(task, settings, job().servers(), source=source, hooks=[seen])
    assert (report.counts["samples"], report.counts["repeats"]) == (NUM_SAMPLES, 0)
    assert sorted(seen.users) == sorted(users_of(pipeline(task.folder)))


def test_a_job_that_is_resumed_trains_each_sample_once(task, job, tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path / "saves"), seed=1)
    first, rest = Seen(steps=11), Seen()
    with served(task) as source:
        run_worker(task, settings, job().servers(), source=source, hooks=[first])
        run_worker(
            task,
            settings,
            job().servers(),
            source=source,
            checkpoint=find(tmp_path / "saves"),
            hooks=[rest],
        )
    assert sorted([*first.users, *rest.users]) == sorted(users_of(pipeline(task.folder)))


def test_a_job_of_one_reader_goes_on_where_a_run_alone_has_ended(task, job, tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path / "saves"), seed=1)
    first, rest = Seen(steps=11), Seen()
    with Trainer(task, settings, hooks=[first]) as trainer:
        trainer.fit()
    checkpoint = find(tmp_path / "saves")
    options = {"checkpoint": checkpoint, "hooks": [rest]}
    text = "while the data service divides it"
    with served(task, 2) as source, pytest.raises(FailedPreconditionError, match=text):
        run_worker(task, settings, job().servers(), source=source, **options)
    with served(task, num_workers=1) as source:
        run_worker(task, settings, job().servers(), source=source, **options)
    assert [*first.users, *rest.users] == users_of(pipeline(task.folder))


@pytest.mark.parametrize(
    ("position", "why"),
    [
        (position_of_shares([[]], 2, 1), "the data service has other shares than the ranks"),
        ({"files": []}, "a data service of 2 workers has no position of one process"),
    ],
)
def test_a_job_says_how_many_samples_a_data_service_reads_again(task, caplog, position, why):
    with contextlib.closing(RunningJob(1, 2)) as running, served(task) as source:
        client = running.client()
        with worker_batches(client, source, BeginAt(position, 40)) as batches:
            assert batches.resume(position) is batches
            assert len(users_of(islice(batches, 2))) == 10
    assert why in caplog.text
    assert "and 40 samples that were trained before are trained once more" in caplog.text


def test_batches_of_a_job_name_their_shares(task, job):
    with served(task) as source:
        client = job().client()
        with worker_batches(client, source) as batches:
            users = users_of(islice(batches, 2))
            position = batches.state_dict()
    assert len(users) == 10
    assert not position.is_in_source
    assert position.num_samples == 5
