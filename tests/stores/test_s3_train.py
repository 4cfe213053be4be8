"""A whole job in a bucket, by the command line: data, checkpoints, logs, a kill, a second run."""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from monolith.checkpoint import existing_checkpoints, load
from monolith.checkpoint.lease import LEASE_FILE, Lease
from monolith.checkpoint.run_lock import only_run
from monolith.checkpoint.state import STATE_FILE
from monolith.errors import NonFiniteLossError
from monolith.train import Trainer, TrainSettings
from tests.cli.run import run
from tests.cli.test_train import TASK
from tests.stores.conftest import killed_at_end
from tests.train.tasks import Clicks
from tests.train.test_non_finite_loss import with_bad

pytestmark = pytest.mark.dist


@pytest.fixture
def monolith(capsys, monkeypatch):
    return functools.partial(run, capsys, monkeypatch)


@pytest.fixture
def arguments(bucket, tmp_path):
    """Arguments of a job whose whole directory is in the bucket."""
    task = tmp_path / "clicks.py"
    task.write_text(TASK)
    rows = {"user": list(range(64)), "item": [i % 5 for i in range(64)]}
    table = pa.table({**rows, "click": [float(i % 2) for i in range(64)]})
    with fsspec.open(f"{bucket.url}/clicks.parquet", "wb") as file:
        pq.write_table(table, file)
    return [
        *("train", str(task), "--data", f"{bucket.url}/clicks.parquet", "--save-every", "2"),
        *("--checkpoints", f"{bucket.url}/run", "--tensorboard", f"{bucket.url}/run/logs"),
        *("--metrics-file", f"{bucket.url}/run/metrics.jsonl", "--set", "train.keep=2"),
        *("--set", "train.log_every=1", "--set", "train.busy_save=wait"),
    ]


def steps_of(bucket):
    prefixes = existing_checkpoints(f"{bucket.url}/run")
    return sorted(int(prefix.rpartition("-")[2]) for prefix in prefixes)


def test_a_run_in_a_bucket_is_saved_inspected_and_resumed(bucket, arguments, monolith):
    arguments += ["--set", "train.full_every=1"]  # links would keep older checkpoints
    ran = monolith(*arguments, "--set", "train.steps=5")
    assert f"step 5 is saved at {bucket.url}/run/model.ckpt-5; next: monolith insp" in ran.err
    assert steps_of(bucket) == [4, 5]
    ran = monolith("inspect", f"{bucket.url}/run", "--verify", "--json")
    assert f"at {bucket.url}/run/model.ckpt-5 (step 5); every byte is as it was" in ran.err
    ran = monolith(*arguments, "--set", "train.steps=8", "--resume")
    assert f"resumed at step 5 from {bucket.url}/run/model.ckpt-5" in ran.err
    assert steps_of(bucket) == [7, 8]


def test_a_run_leaves_its_directory_and_no_lease(bucket, arguments, monolith):
    assert monolith(*arguments, "--set", "train.steps=2", "--profile", "steps=1").status == 0
    names = [name for name in bucket.files("run") if not name.startswith("model.ckpt-2.")]
    assert names[:2] == ["checkpoint", "debugging_info.pb"]
    assert [name.split(".")[0] for name in names[2:3]] == ["logs/events"]
    assert names[-3:] == [
        "meta_graph_for_debugging.pb",
        "metrics.00000.jsonl",
        "monolith_checkpoint",
    ]


def test_tensorboard_reads_a_run_from_the_bucket(bucket, arguments, monolith, monkeypatch):
    monolith(*arguments, "--set", "train.steps=3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.options["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    accumulator = EventAccumulator(f"{bucket.url}/run/logs", size_guidance={"scalars": 0})
    accumulator.Reload()
    assert [event.step for event in accumulator.Scalars("train/loss")] == [1, 2, 3]


def test_metrics_of_two_runs_are_files_in_their_order(bucket, arguments, monolith):
    monolith(*arguments, "--set", "train.steps=2")
    monolith(*arguments, "--set", "train.steps=4", "--resume")
    steps = []
    for number in range(2):
        text = bucket.system.cat_file(f"{bucket.name}/run/metrics.0000{number}.jsonl").decode()
        lines = map(json.loads, text.splitlines())
        steps.append([line["step"] for line in lines if "train/loss" in line.get("gauges", {})])
    assert steps == [[1, 2], [3, 4]]


def test_a_damaged_checkpoint_is_left_out_with_fallback(bucket, arguments, monolith):
    monolith(*arguments, "--set", "train.steps=4")
    bucket.system.pipe_file(f"{bucket.name}/run/model.ckpt-4.trainer.json", b"{}")
    ran = monolith(*arguments, "--set", "train.steps=6", "--resume")
    assert ran.err.endswith("newest checkpoint that is whole: --resume --fallback\n")
    ran = monolith(*arguments, "--set", "train.steps=6", "--resume", "--fallback")
    assert "resumed at step 2" in ran.err
    assert load(f"{bucket.url}/run").step == 6


@contextlib.contextmanager
def running(bucket, arguments):
    """The job as a process that has saved a checkpoint."""
    command = [sys.executable, "-m", "monolith.cli.main", *arguments, "--json"]
    process = subprocess.Popen(
        command,
        env=bucket.environment(),
        stdout=subprocess.DEVNULL,  # a pipe that is not read would stop the run
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + 120
    with killed_at_end(process):
        while not bucket.system.exists(f"{bucket.name}/run/{STATE_FILE}"):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < limit, "no checkpoint in two minutes"
        yield process


def test_a_killed_run_is_resumed_when_its_lease_is_gone(bucket, arguments, monolith):
    with running(bucket, arguments) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    bucket.system.rm(f"{bucket.name}/run/{LEASE_FILE}")  # a wait of a minute would do the same
    step = load(f"{bucket.url}/run").step
    ran = monolith(*arguments, "--resume", "--set", f"train.steps={step + 3}")
    assert f"resumed at step {step} from {bucket.url}/run/model.ckpt-{step}" in ran.err
    assert load(f"{bucket.url}/run").step == step + 3


@pytest.mark.slow
def test_a_killed_run_is_resumed_after_the_time_of_its_lease(bucket, arguments, monolith, caplog):
    with running(bucket, arguments) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    step = load(f"{bucket.url}/run").step
    ran = monolith(*arguments, "--resume", "--set", f"train.steps={step + 1}")
    assert "was not renewed for 60 s; taking it over" in caplog.text
    assert f"resumed at step {step}" in ran.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_gives_its_lease_back(bucket, arguments, number):
    with running(bucket, arguments) as process:
        assert bucket.system.exists(f"{bucket.name}/run/{LEASE_FILE}")
        process.send_signal(number)
        text = process.communicate(timeout=120)[1]
    assert process.returncode == 128 + number
    assert re.search(
        r"after step \d+, which was finished; saved .*; step \d+ is saved at s3://", text
    )
    assert not bucket.system.exists(f"{bucket.name}/run/{LEASE_FILE}")


def test_a_second_run_is_refused_while_the_first_one_goes_on(
    bucket, arguments, monolith, monkeypatch
):
    monkeypatch.setattr(Lease, "seconds", 1.0)
    monkeypatch.setattr(Lease, "poll_seconds", 0.1)
    monolith(*arguments, "--set", "train.steps=2")
    with only_run(f"{bucket.url}/run"):
        ran = monolith(*arguments, "--resume")
    assert ran.status == 1
    owner = rf"process {os.getpid()} on \S+ \(last renewed \S+ \S+ UTC\)"
    assert re.search(rf"into {bucket.url}/run, got a second beside that of {owner}", ran.err)


def test_the_batch_of_a_non_finite_loss_is_kept_in_the_bucket(bucket):
    settings = TrainSettings(keep_dir=f"{bucket.url}/kept")
    with Trainer(Clicks(with_bad()), settings) as trainer, pytest.raises(NonFiniteLossError):
        trainer.fit()
    assert bucket.files("kept") == ["non_finite_loss_2.parquet"]
