"""Printed jobs, whose commands train as processes of this machine."""

import contextlib
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from monolith.checkpoint import find
from monolith.cluster.zmq.curve_keys import CurveKeys
from tests.cli.run import run
from tests.launch.manifests.local_pods import MONOLITH, WAIT_SECONDS, LocalPods

pytestmark = pytest.mark.dist

FAKE_SRUN = Path(__file__).with_name("fake_srun.py")
NUM_ROWS = 512
LONG_ROWS = 40_000
TASK = """
import torch
import monolith as ml

class Clicks(ml.Task):
    features = (ml.Feature("user", dim=4),)

    def source(self, mode):
        samples = ml.data.parquet(self.settings.data[mode])
        return samples.batch(self.settings.batch_size)

    def build(self):
        return torch.nn.Linear(4, 1)

    def loss(self, model, inputs, batch):
        logit = model(inputs.pooled["user"]).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, batch.label)
        return loss, logit.sigmoid()
"""
END = rf"job: (\d+) steps, {NUM_ROWS} samples, 0 trained again, 0 pushes lost"


@pytest.fixture
def printed(capsys, monkeypatch, tmp_path):
    """Prints a job of 2 servers and 2 workers in a folder with its task, data and keys."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.py").write_text(TASK)
    (tmp_path / "data").mkdir()
    columns = {"user": range(NUM_ROWS), "label": [0.0, 1.0] * (NUM_ROWS // 2)}
    pq.write_table(pa.table(columns), tmp_path / "data" / "train.parquet")
    CurveKeys.new().write(tmp_path / "clicks.keys")

    def get(kind, *options):
        words = ("clicks.py", "--ps", 2, "--workers", 2, "--print", kind, "--cpus", 1, *options)
        ran = run(capsys, monkeypatch, "launch", *words, "--set", "batch_size=16")
        assert ran.status == 0
        return ran.out

    return get


def test_the_pods_of_kubernetes_train(printed, tmp_path):
    pods = pods_of(printed, tmp_path)
    try:
        pods.start()
        ask_probes(pods)
        statuses = pods.wait()
    finally:
        pods.close()
    chief = pods.log("clicks-worker-0")
    assert statuses == {
        **dict.fromkeys(["clicks-ps-0", "clicks-ps-1"], 0),
        **dict.fromkeys(["clicks-worker-0", "clicks-worker-1"], 0),
    }, chief
    assert re.search(END, chief), chief
    assert find(str(tmp_path / "data" / "run")) is not None


def pods_of(printed, folder):
    text = printed(
        *("kubernetes", "--image", "monolith:1", "--volume", "claim=/data"),
        *("--data", "/data/train.parquet", "--checkpoints", "/data/run"),
    )
    objects = list(yaml.safe_load_all(text))
    (folder / "pods").mkdir()
    volumes = {"/data": folder / "data"}
    return LocalPods(objects, folder / "pods", folder / "clicks.keys", volumes)


def ask_probes(pods):
    """Ask the servers what the probes of their container ask, until they are ready."""
    (container,) = pods.servers["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = container[kind]["httpGet"]
        for server in range(2):
            url = f"http://{pods.address(server)}:{ports[get['port']]}{get['path']}"
            answer = eventually(lambda url=url: urllib.request.urlopen(url, timeout=10))
            with answer:
                assert json.load(answer)["is_ready"]


def eventually(call):
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.1)):
        try:
            return call()
        except OSError:
            pause.wait(0.1)
    return call()


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Begins a script as sbatch does, with programs in the place of srun, scontrol and monolith."""
    programs = {
        "srun": f'exec {shlex.join([sys.executable, "-S", str(FAKE_SRUN)])} "$@"',
        "scontrol": f'echo "$@" >> {tmp_path}/scontrol.txt',
        "monolith": f'exec {shlex.join(MONOLITH)} "$@"',
    }
    (tmp_path / "bin").mkdir()
    for name, line in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{line}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    processes = []

    def begin(text):
        (tmp_path / "job.sh").write_text(text)
        with open(tmp_path / "log", "ab") as log:
            process = subprocess.Popen(
                ["bash", "job.sh"], cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
            )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        with contextlib.suppress(
            ProcessLookupError
        ):  # steps that the script has left, as Slurm does
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT_SECONDS)


def test_the_script_of_slurm_trains(printed, slurm, tmp_path):
    options = ("--data", "data/train.parquet", "--checkpoints", "saves")
    status = slurm(printed("slurm", *options)).wait(WAIT_SECONDS)
    log = (tmp_path / "log").read_text()
    assert status == 0, log
    assert len(re.findall(END, log)) == 2, log
    assert find(str(tmp_path / "saves")) is not None
    assert not (tmp_path / "scontrol.txt").exists()


def write_data(folder, num_rows):
    columns = {"user": [i % 64 for i in range(num_rows)], "label": [0.0, 1.0] * (num_rows // 2)}
    pq.write_table(pa.table(columns), folder / "train.parquet")


@pytest.mark.slow
def test_a_script_whose_time_is_over_goes_on_where_it_was(printed, slurm, tmp_path):
    write_data(tmp_path / "data", LONG_ROWS)
    options = ("--data", "data/train.parquet", "--checkpoints", "saves")
    text = printed("slurm", *options)
    process = slurm(text)
    log = tmp_path / "log"
    wait_for(lambda: log.exists() and re.search(r"step \d+", log.read_text()))
    process.send_signal(signal.SIGUSR1)
    assert process.wait(WAIT_SECONDS) == 143, log.read_text()
    assert "the time of the job is over" in log.read_text()
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 7\n"
    saved = find(str(tmp_path / "saves")).step
    log.unlink()
    assert slurm(text).wait(WAIT_SECONDS) == 0
    assert f"begins at step {saved:,}" in log.read_text()
    (end,) = {*re.findall(r"job: [\d,]+ steps, ([\d,]+) samples, 0 trained again", log.read_text())}
    assert end == f"{LONG_ROWS:,}"


def wait_for(is_over):
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.1)):
        if is_over():
            return
        pause.wait(0.1)
    raise AssertionError("waited too long")


@pytest.mark.slow
def test_pods_that_all_get_sigterm_save_first(printed, tmp_path):
    write_data(tmp_path / "data", LONG_ROWS)
    pods = pods_of(printed, tmp_path)
    try:
        pods.start()
        wait_for(lambda: re.search(r"step \d+", pods.log("clicks-worker-0")))
        for process in pods.processes.values():
            process.terminate()
        statuses = pods.wait()
    finally:
        pods.close()
    chief = pods.log("clicks-worker-0")
    assert (statuses["clicks-ps-0"], statuses["clicks-ps-1"]) == (0, 0), chief
    assert statuses["clicks-worker-0"] == 143
    saved = find(str(tmp_path / "data" / "run"))
    assert f"step {saved.step:,} is saved at" in chief
    assert saved.step > 0


def test_a_server_that_fails_puts_the_job_into_the_queue_again(printed, slurm, tmp_path):
    assert run_roles(printed, slurm, tmp_path, ps="sleep 1; exit 3", worker="exec sleep 60") == 3
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 7\n"


@pytest.mark.parametrize(
    "roles",
    [{"ps": "exit 2", "worker": "exec sleep 60"}, {"ps": "exec sleep 60", "worker": "exit 2"}],
)
def test_a_wrong_option_is_not_tried_again(printed, slurm, tmp_path, roles):
    assert run_roles(printed, slurm, tmp_path, **roles) == 2
    assert not (tmp_path / "scontrol.txt").exists()


def test_a_job_is_tried_again_some_times(printed, slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    assert run_roles(printed, slurm, tmp_path, ps="exec sleep 60", worker="exit 1") == 1
    assert not (tmp_path / "scontrol.txt").exists()


def run_roles(printed, slurm, tmp_path, **roles):
    """Exit status of a script whose roles are lines of bash."""
    options = ("--data", "data/train.parquet", "--checkpoints", "saves", "--ps", 1)
    text = printed("slurm", *options)
    cases = " ".join(f"{kind}) {line} ;;" for kind, line in roles.items())
    (tmp_path / "bin" / "monolith").write_text(f"#!/bin/bash\ncase $1 in {cases} esac\n")
    return slurm(text).wait(30)
