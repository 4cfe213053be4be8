"""A trainer of one process that another thread stops, saves and resumes over its controller."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from monolith.checkpoint import Checkpoint
from monolith.control import ADDRESS_FILE, ControlOptions
from monolith.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from monolith.train import Hook, Trainer, TrainSettings
from monolith.train.controlled.run_control import ControlledFit
from monolith.train.loop import Updates
from monolith.train.saves.checkpoint_hook import CheckpointHook
from tests.train.controlled.controlled_run import ControlledRun, Steps
from tests.train.roles.job_tasks import wait_for

pytestmark = pytest.mark.req("TS-SRVLIB-T3")

MODES = [{}, {"prefetch": 2, "push": 1}]


@pytest.fixture
def executor():
    with ThreadPoolExecutor() as executor:
        yield executor


def weight_of(run):
    (row,) = run.client.rows(7)
    return row.columns["weight/0"]


@pytest.mark.parametrize("settings", MODES)
def test_a_run_that_stands_has_all_its_updates_and_makes_no_other(tmp_path, settings):
    with ControlledRun(tmp_path, **settings).start() as run:
        run.stand()
        step = run.client.status().step
        assert weight_of(run) == [-step]
        time.sleep(0.2)
        assert (run.client.status().step, weight_of(run)) == (step, [-step])
        run.client.resume()
        wait_for(lambda: run.client.status().step > step)


def test_a_run_stands_only_when_its_last_update_is_done(tmp_path, monkeypatch):
    update = Updates._run

    def late(updates, call):
        time.sleep(0.2)
        update(updates, call)

    monkeypatch.setattr(Updates, "_run", late)
    with ControlledRun(tmp_path, prefetch=2, push=1).start() as run:
        wait_for(lambda: run.client.status().step > 1)
        run.stand()
        assert weight_of(run) == [-run.client.status().step]


@pytest.mark.parametrize("settings", MODES)
def test_calls_are_answered_within_a_second_during_a_long_step(tmp_path, settings):
    with ControlledRun(tmp_path, **settings).start() as run:
        run.enter_long_step()
        for call in (
            *(run.client.stop, run.client.status, run.client.resume, run.client.block_status),
            *(run.client.global_step, lambda: run.client.rows(7)),
        ):
            begin = time.monotonic()
            call()
            assert time.monotonic() - begin < 1
        assert not run.client.status().is_stopped


def test_a_save_waits_for_the_end_of_the_step_and_is_stored_then(tmp_path, executor):
    with ControlledRun(tmp_path).start() as run:
        run.enter_long_step()
        saving = executor.submit(run.client.save)
        time.sleep(0.1)
        assert not saving.done()
        run.leave_long_step()
        path, step = saving.result(60)
        assert Checkpoint(path).step == step == int(path.rpartition("-")[2])
        assert path.startswith(str(tmp_path))


@pytest.mark.parametrize("settings", MODES)
def test_a_save_while_the_run_stands_has_its_step_and_its_row(tmp_path, settings):
    with ControlledRun(tmp_path, **settings).start() as run:
        run.stand()
        path, step = run.client.save()
        assert (step, run.client.status().checkpoint) == (run.client.status().step, path)
        (rows,) = Checkpoint(path).load_tables()["one"].export()
        assert rows.columns["weight/0"].tolist() == [[-step]]


def test_a_step_that_is_saved_is_not_saved_again(tmp_path):
    with ControlledRun(tmp_path).start() as run:
        run.stand()
        first, time_of_first = run.client.save(), (tmp_path / "checkpoint").stat().st_mtime_ns
        assert run.client.save() == first
        assert (tmp_path / "checkpoint").stat().st_mtime_ns == time_of_first


def test_a_save_that_is_not_reached_in_time_is_withdrawn(tmp_path):
    with ControlledRun(tmp_path).start() as run:
        run.enter_long_step()
        with pytest.raises(DeadlineExceededError):
            run.client.save(0.2)
        time.sleep(0.3)  # the server has given up, too
        run.leave_long_step()
        run.stand()
        assert run.client.status().checkpoint == ""


def test_an_error_of_a_save_is_the_caller_s_and_the_run_goes_on(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise UnavailableError("no space left")

    with ControlledRun(tmp_path, ignore_save_errors=True).start() as run:
        with monkeypatch.context() as patch:
            patch.setattr(CheckpointHook, "_write", fail)
            with pytest.raises(UnavailableError, match="no space left"):
                run.client.save()
        step = run.client.status().step
        wait_for(lambda: run.client.status().step > step)


def test_a_run_that_stands_ends_without_another_step(tmp_path):
    with ControlledRun(tmp_path).start() as run:
        run.stand()
        step = run.client.status().step
        run.end()
        assert (run.result.num_steps, run.result.ended) == (step, "stopped")
        assert not (tmp_path / ADDRESS_FILE).exists()


def test_a_run_that_waits_for_its_source_stands_too(tmp_path):
    with ControlledRun(tmp_path, prefetch=1) as run:
        run.task.source = lambda mode: waiting_source(run)
        run.start()
        run.stand()
        assert run.client.status().step == 0
        run.client.resume()


def waiting_source(run):
    """A source without a batch until the run ends."""
    wait_for(lambda: run.trainer._loop.is_stopping)
    yield from ()


class FailsInWait(Hook):
    """Fails on a thread of the run when it stands."""

    def __init__(self, run):
        self.run = run

    def after_create_session(self, run, coordinator):
        def fail():
            wait_for(lambda: self.run.trainer.run.metadata.get("fails"))
            raise OSError("a thread has failed")

        coordinator.start(fail, name="failing")


def test_a_thread_that_fails_ends_a_run_that_stands(tmp_path):
    with ControlledRun(tmp_path) as run:
        run.start([FailsInWait(run)])
        run.stand()
        run.trainer.run.metadata["fails"] = True
        run.thread.join(60)
        assert str(run.error) == "a thread has failed"
        assert not (tmp_path / ADDRESS_FILE).exists()


def test_the_time_for_which_a_run_stands_is_none_of_its_speed(tmp_path):
    begin = time.monotonic()
    with ControlledRun(tmp_path).start() as run:
        run.stand()
        time.sleep(0.5)
        run.client.resume()
        run.enter_long_step()
        meter = run.trainer.state._meter
        counted = meter.num_samples / meter.samples_per_second
        assert counted < time.monotonic() - begin - 0.5


def test_the_status_of_a_run(tmp_path):
    with ControlledRun(tmp_path).start() as run:
        run.stand()
        status = run.client.status()
        (worker,) = status.workers
        assert (status.samples, worker.step, status.task) == (status.step, status.step, "Steps")
        assert (worker.samples_per_second, status.lost_pushes) == (0, 0)
        assert run.client.block_status() == ([0], [])
        run.client.resume()
        assert run.client.block_status() == ([], [0])


def test_a_table_that_is_not_there_is_named(tmp_path):
    with (
        ControlledRun(tmp_path).start() as run,
        pytest.raises(NotFoundError, match=r"a table of the run \(one\), got 'two'"),
    ):
        run.client.rows(7, "two")


def test_a_run_without_saves_of_its_own_refuses_a_save(tmp_path):
    with ControlledRun(tmp_path) as run:
        fit = ControlledFit(run.trainer, None, None, [CheckpointHook(tmp_path, is_dense_only=True)])
        with pytest.raises(FailedPreconditionError, match="expected a run that saves checkpoints"):
            fit.save()


def test_a_controller_without_a_folder_is_refused():
    with pytest.raises(InvalidArgumentError, match="expected checkpoint_dir with control"):
        Trainer(Steps(), TrainSettings(), control=ControlOptions())
