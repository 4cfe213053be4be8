"""Runs whose directory is in a store."""

import fsspec
import pytest

from monolith.checkpoint.lease import LEASE_FILE, Lease
from monolith.errors import FailedPreconditionError
from monolith.train import Hook, Trainer, TrainSettings
from tests.train.tasks import Counting


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Lease, "seconds", 0.2)
    monkeypatch.setattr(Lease, "poll_seconds", 0.01)
    return f"memory://runs-{tmp_path.name}"


def names(folder):
    system, inside = fsspec.core.url_to_fs(folder)
    return sorted(path.rpartition("/")[2] for path in system.ls(inside, detail=False))


class After(Hook):
    """Calls a function after a step."""

    def __init__(self, step, call):
        self._step, self._call = step, call

    def after_run(self, ctx, results):
        if ctx.run.global_step == self._step:
            self._call()


def test_a_run_leaves_its_newest_checkpoints_and_no_lease(folder):
    settings = TrainSettings(checkpoint_dir=folder, save_every=2, keep=2, busy_save="wait")
    with Trainer(Counting(6), settings) as trainer:
        trainer.fit(hooks=[After(1, lambda: LEASE_FILE in names(folder) or pytest.fail("none"))])
    assert names(folder) == [
        "checkpoint",
        "debugging_info.pb",
        "meta_graph_for_debugging.pb",
        *(f"model.ckpt-{step}.{end}" for step in (4, 6) for end in ENDS),
        "monolith_checkpoint",
    ]


ENDS = ("assets", "dense-00000-of-00001.safetensors", "manifest.json", "meta.json", "trainer.json")


def test_a_second_run_is_refused_while_the_first_one_goes_on(folder, monkeypatch):
    # A renewal every two seconds; the second run waits four times as long, or longer: it counts
    # the time between two looks, and no look takes less than that.
    monkeypatch.setattr(Lease, "seconds", 8.0)
    monkeypatch.setattr(Lease, "poll_seconds", 0.0001)

    def second():
        with (
            Trainer(Counting(), TrainSettings(checkpoint_dir=folder)) as other,
            pytest.raises(FailedPreconditionError, match=rf"saves into {folder}, got a second"),
        ):
            other.fit()
        assert other.run.global_step == 0

    with Trainer(Counting(2), TrainSettings(checkpoint_dir=folder)) as trainer:
        trainer.fit(hooks=[After(1, second)])
        trainer.fit()  # the first one has ended
    assert "model.ckpt-4.manifest.json" in names(folder)


def test_a_run_that_is_killed_lets_the_next_one_go_on_after_the_time_of_its_lease(folder):
    Lease(folder).acquire()  # of a process that renews nothing any more
    with Trainer(Counting(2), TrainSettings(checkpoint_dir=folder)) as trainer:
        trainer.fit()
    assert "model.ckpt-2.manifest.json" in names(folder)


@pytest.fixture
def lose(monkeypatch):
    """Return a function that lets the run see that its lease was taken over."""
    leases, acquire = [], Lease.acquire
    monkeypatch.setattr(Lease, "acquire", lambda lease: (leases.append(lease), acquire(lease))[1])
    return lambda: setattr(leases[0], "_new_owner", "another run")


class AtEnd(Hook):
    def __init__(self, call):
        self._call = call

    def end(self, run):
        self._call()


@pytest.mark.parametrize(("hook", "last_step"), [(lambda lose: After(3, lose), 3), (AtEnd, 5)])
def test_a_run_that_lost_its_lease_saves_no_more(folder, lose, hook, last_step):
    settings = TrainSettings(checkpoint_dir=folder, save_every=2, busy_save="wait")
    with (
        Trainer(Counting(5), settings) as trainer,
        pytest.raises(FailedPreconditionError, match="got that of another run, which took"),
    ):
        trainer.fit(hooks=[hook(lose)])
    assert trainer.run.global_step == last_step
    steps = {name.split(".")[1] for name in names(folder) if name.startswith("model.")}
    assert steps == {f"ckpt-{step}" for step in range(2, last_step, 2)}


def test_a_run_that_is_interrupted_or_fails_leaves_no_lease(folder):
    def fail():
        raise KeyboardInterrupt

    with Trainer(Counting(), TrainSettings(checkpoint_dir=folder)) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(hooks=[After(1, fail)])
        assert LEASE_FILE not in names(folder)
