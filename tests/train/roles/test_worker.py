"""How a worker begins: `_prepare`, `_go_on` and `_follow`, with a job that notes its calls."""

import functools
import types

import pytest

from monolith.errors import AbortedError
from monolith.train.roles import worker
from monolith.train.roles.worker import FIRST_STEP, _clients_of, _newest, _prepare


class Job:
    """Notes what a worker asks of its job, and of its served parameters."""

    num_steps, first_step = 7, None

    def __init__(self, ready):
        self.ready, self.texts, self.calls = list(ready), {FIRST_STEP: "5"}, []
        self.servers = self.ready

    def describe(self):
        return [{"is_ready": ready} for ready in self.ready]

    def set_ready(self, server):
        self.ready[server] = True

    def set_text(self, name, text):
        self.texts[name] = text

    def text(self, name):
        return self.texts.get(name, "")

    def restore_server(self, server, checkpoint):
        self.calls.append(("restore_server", server, checkpoint.prefix))

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append(name)


def trainer_of(job, *, checkpoint=None, directory=None):
    note = functools.partial(setattr, job, "noted")
    state = types.SimpleNamespace(first=3, checkpoint=checkpoint, note_checkpoint=note)
    return types.SimpleNamespace(
        served=job,
        state=state,
        run=types.SimpleNamespace(global_step=0),
        settings=types.SimpleNamespace(checkpoint_dir=directory),
        restore=lambda prefix: job.calls.append(("restore", prefix)),
        save=lambda folder: job.calls.append(("save", folder)),
    )


@pytest.fixture(autouse=True)
def checkpoints(monkeypatch):
    """Checkpoints are names here."""
    monkeypatch.setattr(worker, "Checkpoint", lambda prefix: types.SimpleNamespace(prefix=prefix))


def test_the_chief_gives_empty_servers_its_values():
    job = Job([False, False])
    _prepare(trainer_of(job), job, None)
    assert job.calls == ["send_all", "send_untrained"]
    assert (job.ready, job.texts[FIRST_STEP], job.first_step) == ([True, True], "3", 3)


def test_the_chief_saves_before_the_first_step():
    job = Job([False])
    _prepare(trainer_of(job, directory="ck"), job, None)
    assert job.calls == ["send_all", "send_untrained", ("save", "ck")]


def test_the_chief_restores_empty_servers_from_its_checkpoint():
    job = Job([False])
    checkpoint = types.SimpleNamespace(prefix="ck-9")
    _prepare(trainer_of(job, directory="ck"), job, checkpoint)
    assert job.calls == [("restore", "ck-9"), "send_untrained"]


def test_a_chief_that_came_back_follows_its_servers():
    job = Job([True, True])
    trainer = trainer_of(job)
    _prepare(trainer, job, types.SimpleNamespace(prefix="ck-9"))
    assert job.calls == ["take_untrained", "fetch", "refresh", "send_untrained"]
    assert (job.first_step, trainer.run.global_step) == (5, 7)


def test_a_chief_that_came_back_restores_the_servers_that_were_lost_meanwhile():
    job = Job([True, False])
    _prepare(trainer_of(job, checkpoint="ck-4"), job, None)
    follow = ["take_untrained", "fetch", "refresh"]
    assert job.calls == [("restore_server", 1, "ck-4"), *follow, "read_untrained", "send_untrained"]


def test_a_lost_server_without_a_checkpoint_is_an_error():
    job = Job([True, False])
    with pytest.raises(AbortedError, match=r"got servers \[1\] that came back empty"):
        _prepare(trainer_of(job), job, None)


def test_the_newest_checkpoint_is_the_own_or_that_of_the_folder(monkeypatch):
    job = Job([])
    found = {"ck": types.SimpleNamespace(prefix="ck-2"), "empty": None}
    monkeypatch.setattr(worker, "find", found.get)
    assert _newest(trainer_of(job, checkpoint="ck-4", directory="ck")) == "ck-4"
    assert _newest(trainer_of(job, directory="ck")) == "ck-2"
    assert _newest(trainer_of(job, directory="empty")) is None
    assert _newest(trainer_of(job)) is None


def test_an_engine_that_is_not_on_servers_has_no_callers():
    pending = types.SimpleNamespace(engine=object())
    assert _clients_of(types.SimpleNamespace(features=types.SimpleNamespace(pending=pending))) == []
