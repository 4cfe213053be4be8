"""Jobs of real processes with a worker that is ill, slow or stopped, and with tasks that differ."""

import re
import signal

import pytest

from monolith.checkpoint import Checkpoint
from tests.train.roles.jobs import checkpoints, counts_of

pytestmark = pytest.mark.dist


@pytest.mark.req("TS-CPUDIST-T6")
def test_a_row_that_one_worker_trained_is_read_by_another_one(nursery, samples):
    with nursery.job(samples(80), task="Seen", settings={"batch_size": 8}) as job:
        job.pause([1], [])
        job.start("ps-0"), job.start("ps-1"), job.start("worker-0")
        job.meet(0, [0])
        job.start("worker-1")
        job.wait_for(lambda: job.has_begun("worker-1.1", 2))
        job.go(0)
        job.wait()
    seen = [float(text) for text in (job.folder / "seen-worker-1.1").read_text().split()]
    assert seen[0] == 1  # the one update of worker 0, while worker 1 had made none


@pytest.mark.req("TS-CPUDIST-T6")
def test_a_loss_that_is_not_a_number_ends_its_worker_and_leaves_the_rest_unharmed(nursery, samples):
    with nursery.job(samples(400), settings={"nan": 1, "train.keep_dir": ""}) as job:
        job.pause([1], [1])
        job.start_all().meet(0, range(2))
        job.go(0)
        assert job.roles["worker-1"].wait() == 1
        assert "loss" in job.roles["worker-1"].errors
        job.roles.pop("worker-1")
        ended = job.wait()
    assert counts_of(job.saves) == dict.fromkeys(range(400), 1)
    assert (ended["job"]["samples"], ended["job"]["steps"]) == (400, 50)
    for table in Checkpoint(checkpoints(job.saves)[-1]).load_tables().values():
        for chunk in table.export():
            assert all(column.isfinite().all() for column in chunk.columns.values())


@pytest.mark.req("TS-CPUDIST-T6")
def test_a_stopped_worker_is_given_up_by_a_save_and_all_that_it_writes_later_is_refused(
    nursery, samples
):
    with nursery.job(samples(800), **{"--save-every": 20}) as job:
        job.pause([1, 60], [1])
        for name in ("ps-0", "ps-1", "worker-1"):
            job.start(name)
        chief, stopped = job.start("worker-0", "--hold-seconds", "2"), job.roles.pop("worker-1")
        job.meet(0, range(2))
        stopped.signal(signal.SIGSTOP)
        job.go(0)
        job.meet(1, [0])
        stopped.signal(signal.SIGCONT)
        assert stopped.wait() == 1
        job.go(1)
        ended = job.wait()
    assert re.search(r"workers \[1\] did not hold their pushes within 2 seconds", chief.errors)
    assert re.search("error: .*(given up|is gone|was replaced)", stopped.errors)
    assert (ended["job"]["dropped"], ended["job"]["repeats"]) == (1, 8)  # its only step
    counts = counts_of(job.saves)
    assert (len(counts), sum(counts.values())) == (800, 808)


@pytest.mark.req("TS-CPUDIST-T6")
@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("dim=5", r"table|feature|Linear|parameter 0.weight"),
        ("hidden=9", r"parameter 0.weight: float32 \(8, 4\).*parameter 0.weight: float32 \(9, 4\)"),
        ("optimizer=momentum", "optimizer Adam.*optimizer SGD"),
        ("train.accumulate=2", "accumulate 1.*accumulate 2"),
    ],
)
def test_a_worker_with_another_task_is_refused_by_the_difference(nursery, samples, setting, text):
    with nursery.job(samples(80)) as job:
        job.pause([1], [])
        job.start("ps-0"), job.start("ps-1"), job.start("worker-0")
        job.meet(0, [0])
        other = job.start("worker-1", "--set", setting)
        assert other.wait() == 1
        assert re.search(text, other.errors, re.DOTALL)
        job.roles.pop("worker-1")
        job.go(0)
        job.wait()
    assert counts_of(job.saves) == dict.fromkeys(range(80), 1)


@pytest.mark.req("TS-CPUDIST-T6")
def test_a_worker_with_another_number_of_workers_is_refused(nursery, samples):
    with nursery.job(samples(80)) as job:
        job.pause([1], [])
        job.start("ps-0"), job.start("ps-1"), job.start("worker-0")
        job.meet(0, [0])
        other = job.start("worker-1", "--num-workers", "3")
        assert other.wait() == 1
        assert "expected a job of 2 workers, got one of 3" in other.errors
        job.roles.pop("worker-1")
        job.go(0)
        job.wait()


@pytest.mark.req("TS-CPUDIST-T6")
def test_a_slow_worker_holds_up_neither_the_cut_of_a_save_nor_the_others(nursery, samples):
    settings = {"slow": 1, "train.busy_save": "wait", "train.keep": 0}
    with nursery.job(samples(800), settings=settings, **{"--save-every": 20}) as job:
        job.pause([1], [1])
        job.start_all().meet(0, range(2))
        job.go(0)
        ended = job.wait()
        steps = [int((job.folder / f"began/worker-{i}.1").read_text()) for i in range(2)]
    assert steps[0] > 3 * steps[1] > 0  # the chief goes on
    assert sum(steps) == ended["job"]["steps"] == 100
    assert ended["saves"]["pause_seconds"] < 0.5 * ended["seconds"]
    assert counts_of(job.saves) == dict.fromkeys(range(800), 1)


@pytest.mark.slow
@pytest.mark.req("TS-CPUDIST-T6")
def test_workers_go_on_after_the_limit_when_the_chief_dies_while_all_hold(nursery, samples):
    with nursery.job(samples(800), **{"--save-every": 20}) as job:
        job.strike(("worker-0", "held"))
        job.pause([1], [1])
        for name in ("ps-0", "ps-1", "worker-1"):
            job.start(name)
        chief = job.start("worker-0", "--hold-seconds", "1")
        job.meet(0, range(2))
        job.go(0)
        assert chief.wait() == -signal.SIGKILL
        (job.folder / "struck-0").unlink()  # worker 1 does not wait for the chief
        before = int((job.folder / "began/worker-1.1").read_text())
        job.wait_for(lambda: job.has_begun("worker-1.1", before + 2))
        again = job.start("worker-0")
        (job.folder / "strikes.json").unlink()
        assert again.wait() == 0
        job.wait()
    assert set(counts_of(job.saves).values()) <= {1, 2}
