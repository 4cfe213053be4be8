"""Jobs of real processes: servers and workers of `cpu_dist_program`."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from monolith.checkpoint import find

pytestmark = pytest.mark.dist

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 120.0


@pytest.fixture(scope="module")
def nursery():
    with subprocess.Popen(
        [sys.executable, "-m", "tests.native_training.dist_nursery"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        cwd=ROOT,
    ) as process:
        yield process
        process.stdin.close()


class Job:
    """The processes of a job, with what they said."""

    def __init__(self, nursery, folder, case, *, num_servers=2, options=()):
        self.folder, self._nursery = folder, nursery
        self._common = ["--test_case", str(case), "--test_dir", str(folder), *options]
        self.servers = [self.start("ps", index) for index in range(num_servers)]
        self.workers = [self.start("worker", index) for index in range(2)]

    def start(self, kind, index):
        output = self.folder / f"{kind}-{index}.log"
        line = [str(output), *self._common, "--server_type", kind, "--index", str(index)]
        self._nursery.stdin.write(json.dumps(line) + "\n")
        assert int(self._nursery.stdout.readline()) > 0
        return output

    def statuses(self, outputs):
        """The exit statuses of processes, when they have ended."""
        pause = threading.Event()
        files = [Path(f"{output}.status") for output in outputs]
        for _ in range(int(WAIT_SECONDS / 0.05)):
            if all(file.exists() for file in files):
                return [int(file.read_text()) for file in files]
            pause.wait(0.05)
        raise AssertionError("\n".join(f"{o}:\n{o.read_text()}" for o in outputs))

    def assert_ended_well(self, outputs):
        assert self.statuses(outputs) == [0] * len(outputs), self.said(outputs)

    def said(self, outputs):
        return "\n".join(output.read_text() for output in outputs)

    def steps(self):
        """Number of steps of the last checkpoint."""
        return find(self.folder / "job" / "model").step


@pytest.mark.req("TS-CPUDIST-T1")
@pytest.mark.parametrize(
    ("num_more", "options"),
    [
        (0, ["--use_native_multi_hash_table"]),
        (1, ["--num_extra_ps", "1"]),
        (1, ["--num_redundant_ps", "1"]),
        (2, ["--num_extra_ps", "1", "--num_redundant_ps", "1"]),
    ],
)
def test_all_processes_of_a_job_end_well(nursery, tmp_path, num_more, options):
    job = Job(nursery, tmp_path, 0, num_servers=2 + num_more, options=options)
    job.assert_ended_well([*job.workers, *job.servers])
    assert job.steps() == 2
    assert "Started ps 1 at 127.0.0.1:" in (said := job.said([*job.servers, *job.workers]))
    assert said.count("Finished ps ") == 2 + num_more
    assert "Started worker 1 at " in said
    assert said.count("Finished worker ") == 2
    assert ("throughputs of the servers" in said) == ("--num_extra_ps" in options)


@pytest.mark.req("TS-CPUDIST-T2")
def test_a_shutdown_that_hangs_does_not_hang_the_workers(nursery, tmp_path):
    job = Job(nursery, tmp_path, 1)
    job.assert_ended_well(job.workers)
    assert "the shutdown of the servers has not ended within 0.5 s" in job.said(job.workers)
    assert not any(Path(f"{output}.status").exists() for output in job.servers)


@pytest.mark.req("TS-CPUDIST-T3")
def test_a_step_that_is_late_is_tried_again(nursery, tmp_path):
    job = Job(nursery, tmp_path, 2)
    job.assert_ended_well([*job.workers, *job.servers])
    for index, output in enumerate(job.workers):
        assert f"worker {index} tries again after: the first step is late" in output.read_text()
    assert job.steps() == 2  # also those that the other worker made meanwhile


@pytest.mark.req("TS-CPUDIST-T4")
def test_the_chief_goes_on_only_when_all_workers_have_registered(nursery, tmp_path):
    job = Job.__new__(Job)
    job.folder, job._nursery = tmp_path, nursery
    job._common = ["--test_case", "0", "--test_dir", str(tmp_path)]
    servers = [job.start("ps", index) for index in range(2)]
    chief = job.start("worker", 0)
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.05)):
        if find(tmp_path / "job" / "model"):  # the chief has begun
            break
        pause.wait(0.05)
    assert not Path(f"{chief}.status").exists()
    worker = job.start("worker", 1)
    job.assert_ended_well([chief, worker, *servers])
    assert job.steps() == 2
