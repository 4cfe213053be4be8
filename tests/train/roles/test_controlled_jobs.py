"""Jobs of real processes that are stopped, saved and resumed by another process."""

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from monolith.checkpoint import Checkpoint
from monolith.cluster.job.job_client import JOB
from monolith.control import ADDRESS_FILE, ControllerClient, ControllerStub
from tests.cli.run import run
from tests.train.roles.jobs import checkpoints, counts_of
from tests.train.roles.role_records import SILENT
from tests.train.roles.test_job_records import (
    SAVES,
    assert_dense_replayed,
    assert_tables_replayed,
    cuts_of,
)

pytestmark = [pytest.mark.dist, pytest.mark.thorough, pytest.mark.req("TS-SRVLIB-T3")]

PROMPT_SECONDS = 1.0


def prompt(call):
    """Call a function, which takes less than a second."""
    begin = time.monotonic()
    result = call()
    assert time.monotonic() - begin < PROMPT_SECONDS
    return result


def in_long_steps(job, *steps):
    """Start the roles; each worker is in a step that lasts until `job.go(0)`."""
    job.pause(*[[step] for step in steps])
    job.start_all().meet(0, range(len(steps)))
    return ControllerClient(str(job.saves))


def states_of(client):
    return [worker.state.value for worker in client.status().workers]


def wait_for_states(job, client, *states):
    job.wait_for(lambda: states_of(client) == list(states))


@pytest.mark.parametrize("settings", [{}, {"train.prefetch": 2, "train.push": 1}])
def test_a_save_while_all_stand_is_one_cut_of_a_job_that_then_goes_on(nursery, samples, settings):
    data = samples(800)
    with (
        nursery.job(data, record=True, settings=SAVES | settings) as job,
        ThreadPoolExecutor() as e,
        in_long_steps(job, 3, 5) as client,
    ):
        for call in (client.stop, client.resume, client.stop, client.status):
            prompt(call)
        assert prompt(lambda: len(client.rows(7))) >= 1  # users and samples that were trained
        assert states_of(client) == ["running", "running"]
        early = e.submit(client.save)
        time.sleep(0.3)
        assert not early.done()
        job.go(0)
        wait_for_states(job, client, "parked", "parked")
        assert client.block_status() == ([0, 1], [])
        early.result(60)
        saved = client.save()
        rows = [client.rows(key) for key in range(50)]
        time.sleep(0.3)
        assert rows == [client.rows(key) for key in range(50)]
        assert (client.status().step, saved.step) == (8, 8)
        prompt(client.resume)
        ended = job.wait()
    checkpoint = Checkpoint(saved.path)
    number = checkpoints(job.saves).index(saved.path)
    assert_tables_replayed(job, checkpoint, cuts_of(job, number))
    assert_dense_replayed(job, checkpoint, number, data)
    numbers = [state["numbers"] for state in checkpoint.read_trainer()[JOB]]
    assert numbers == [{"0": 3, "1": 5}] * 2  # each has the steps at which it stands
    assert list(counts_of(saved.path).values()) == [1] * 8 * 8
    assert counts_of(job.saves) == dict.fromkeys(range(800), 1)
    assert (ended["job"]["samples"], ended["job"]["repeats"]) == (800, 0)


def test_a_dead_worker_is_left_out_and_named_and_stands_when_it_comes_back(
    nursery, samples, capsys, monkeypatch
):
    job = nursery.job(samples(800))
    (job.folder / SILENT).write_text("4")  # longer than the 3 seconds between two watches
    with job, in_long_steps(job, 3, 5) as client:
        job.kill("worker-1")
        job.go(0)
        ran = run(capsys, monkeypatch, "control", "--model-dir", job.saves, "stop", "--wait", "60")
        assert ran.status == 0
        assert re.search(r"worker 0 stands; without worker 1, silent for \d+ seconds", ran.err)
        job.start("worker-1")
        wait_for_states(job, client, "parked", "parked")
        assert not job.has_begun("worker-1.2")
        client.resume()
        ended = job.wait()
    assert sum(counts_of(job.saves).values()) == 800 + ended["job"]["repeats"]
    assert min(counts_of(job.saves).values()) == 1


def test_a_chief_that_dies_while_training_is_stopped_changes_nothing(nursery, samples):
    with nursery.job(samples(800)) as job, ThreadPoolExecutor() as executor:
        job.pause([3], [5])
        ended = executor.submit(job.launch)
        job.meet(0, range(2))
        address = job.saves / ADDRESS_FILE
        with ControllerClient(str(job.saves)) as client:
            client.stop()
            job.go(0)
            wait_for_states(job, client, "parked", "parked")
            before, old = client.status(), address.read_text()
            job.signal_role("worker-0")
            job.wait_for(lambda: address.read_text() != old)
            wait_for_states(job, client, "parked", "parked")  # the client has found the new address
            after = client.status()
        assert (after.step, after.is_stopped) == (before.step, True)
        with ControllerStub.of_model_dir(str(job.saves)) as stub:
            assert stub.GetTrainingStatus().global_step == before.step
            stub.ResumeTraining()
        report = ended.result(120)["result"]["job"]
    assert (report["samples"] - report["repeats"], min(counts_of(job.saves).values())) == (800, 1)
    assert not address.exists()


def test_a_server_0_that_dies_while_training_is_stopped_changes_nothing(nursery, samples):
    with nursery.job(samples(800)) as job, ThreadPoolExecutor() as executor:
        job.pause([3], [5])
        ended = executor.submit(job.launch)
        job.meet(0, range(2))
        with ControllerClient(str(job.saves), timeout_seconds=60.0) as client:
            client.stop()
            job.go(0)
            wait_for_states(job, client, "parked", "parked")
            step = client.save().step
            assert 8 <= step <= 10  # a worker that hears of the stop late makes one more step
            job.signal_role("ps-0")
            job.wait_for(lambda: len(job.lives("ps-0")) == 2)
            wait_for_states(job, client, "parked", "parked")
            assert (client.status().step, client.status().is_stopped) == (step, True)
            client.resume()
        report = ended.result(120)["result"]["job"]
    assert (report["samples"], report["lost_pushes"], report["repeats"]) == (800, 0, 0)
    assert counts_of(job.saves) == dict.fromkeys(range(800), 1)


def test_a_job_that_is_ended_while_it_is_stopped_saves_and_makes_no_other_step(nursery, samples):
    with nursery.job(samples(800)) as job, in_long_steps(job, 3, 5) as client:
        client.stop()
        job.go(0)
        wait_for_states(job, client, "parked", "parked")
        job.roles["worker-0"].signal(signal.SIGTERM)
        statuses = {name: role.wait() for name, role in sorted(job.roles.items(), reverse=True)}
        assert statuses == {"worker-0": 143, "worker-1": 0, "ps-0": 0, "ps-1": 0}
        counts = counts_of(job.saves)
    assert set(counts.values()) == {1}
    assert (
        8 * 8 <= len(counts) <= 10 * 8
    )  # a worker that hears of the stop late makes one more step
