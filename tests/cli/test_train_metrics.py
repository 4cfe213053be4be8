import functools
import json
import re
import socket
import subprocess
import sys
import urllib.request

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.cli.run import run
from tests.cli.test_train import TASK, task  # noqa: F401 -- a fixture
from tests.forker import limited


@pytest.fixture
def monolith(capsys, monkeypatch):
    return functools.partial(run, capsys, monkeypatch)


@pytest.fixture
def train(monolith, task):  # noqa: F811
    path, data = task
    return functools.partial(
        monolith, "train", path, "--data", data, "--set", "train.steps=30", "--set",
        "train.log_every=10",
    )  # fmt: skip


def test_a_file_of_metrics_has_a_line_for_each_report(train, tmp_path):
    path = tmp_path / "logs" / "metrics.jsonl"
    assert train("--metrics-file", path).status == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [line["step"] for line in lines if "train/loss" in line.get("gauges", {})]
    assert steps == [10, 20, 30]
    assert [line["event"] for line in lines if "event" in line] == ["run_started", "run_ended"]


def test_a_profile_of_some_steps_is_written_to_profiles(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = train("--profile", "steps=3")
    (trace,) = tmp_path.glob("profiles/*.pt.trace.json")
    assert f"trace: {trace}; next: open it at https://ui.perfetto.dev" in ran.err
    names = [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]]
    assert names.count("monolith.step") == 3


def test_a_profile_without_a_start_begins_after_ten_steps(train, tmp_path):
    train("--profile", "steps=3", "--profile-dir", tmp_path / "own", "--set", "train.steps=12")
    (trace,) = tmp_path.glob("own/*.pt.trace.json")
    names = [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]]
    assert names.count("monolith.step") == 2


def test_traces_lie_in_the_folder_of_tensorboard(train, tmp_path):
    train("--profile", "from=5,steps=2", "--tensorboard", tmp_path / "logs")
    assert len(list(tmp_path.glob("logs/*.pt.trace.json"))) == 1
    train("--profile", "steps=2", "--profile-dir", tmp_path / "own", "--tensorboard", tmp_path)
    assert len(list(tmp_path.glob("own/*.pt.trace.json"))) == 1


def test_a_run_that_ends_before_the_profile_says_so(train, tmp_path):
    ran = train("--profile", "from=500,steps=10", "--profile-dir", tmp_path / "own")
    assert "no trace: the run ended before the steps of --profile" in ran.err


def in_use():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    return server


def refused(ran, text):
    """Whether a command ended with one line and status 2, before a step."""
    (line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    return ran.status == 2 and text in line and "samples/s" not in ran.err


def test_a_port_in_use_is_refused_at_the_start(train):
    with in_use() as server:
        port = server.getsockname()[1]
        assert refused(train("--metrics-port", port), f"got port {port} of 127.0.0.1")


def test_an_address_of_ipv6_is_told_as_one_can_open_it(train):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    ran = train("--metrics-port", 0, "--metrics-host", "::1")
    assert re.search(r"metrics: http://\[::1\]:\d+/metrics", ran.err)


@pytest.mark.parametrize("option", ["--tensorboard", "--metrics-file"])
def test_a_path_that_cannot_be_written_is_refused_at_the_start(train, tmp_path, option):
    (tmp_path / "file").touch()
    assert refused(train(option, tmp_path / "file" / "logs"), str(tmp_path / "file"))


def test_a_profile_folder_that_cannot_be_written_is_refused_at_the_start(train, tmp_path):
    (tmp_path / "file").touch()
    ran = train("--profile", "steps=3", "--profile-dir", tmp_path / "file" / "traces")
    assert refused(ran, "expected a folder that can be written")


@pytest.mark.parametrize("text", ["10", "steps=0", "steps=x", "steps=5,from=1", "from=1", ""])
def test_a_wrong_profile_is_refused_at_the_start(train, text):
    assert refused(train("--profile", text), f"from=STEP,steps=N, got {text!r}")


def test_a_store_keeps_metrics_and_traces(train, tmp_path):
    folder = f"memory://metrics-{tmp_path.name}"
    options = ("--tensorboard", f"{folder}/logs", "--metrics-file", f"{folder}/lines.jsonl")
    ran = train(*options, "--profile", "steps=2")
    system, inside = fsspec.core.url_to_fs(folder)
    lines, trace, events = sorted(
        (path.removeprefix(f"{inside}/") for path in system.find(inside)), key=len
    )
    assert events.startswith("logs/events.out.tfevents.")
    assert f"trace: {folder}/{trace}; next: open it" in ran.err
    assert lines == "lines.00000.jsonl"
    assert b'"event": "run_ended"' in system.cat_file(f"{inside}/{lines}")


@pytest.mark.parametrize("option", ["--tensorboard", "--metrics-file", "--profile-dir"])
def test_a_store_that_cannot_be_written_is_refused_at_the_start(train, monkeypatch, option):
    def fail(system, *arguments, **options):
        raise PermissionError("denied")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
    ran = train("--profile", "steps=1", "--profile-dir", "profiles", option, "memory://a/b")
    assert refused(ran, "that can be written, got ")
    assert re.search(r"memory://a/b.*denied", ran.err)


@pytest.mark.parametrize(
    ("option", "other"), [("--profile-dir", "--profile"), ("--metrics-host", "--metrics-port")]
)
def test_an_option_without_its_other_is_refused(train, option, other):
    assert refused(train(option, "x"), f"expected {other} with {option}, got none")


def test_missing_data_is_not_looked_for_before_a_port_is_open(monolith, task, tmp_path):  # noqa: F811
    with in_use() as server:
        flags = ("--data", tmp_path / "none.parquet", "--metrics-port", server.getsockname()[1])
        ran = monolith("train", task[0], *flags)
    assert refused(ran, "127.0.0.1")


def test_a_port_is_free_again_after_another_sink_was_refused(train, tmp_path):
    with in_use() as server:
        port = server.getsockname()[1]
    (tmp_path / "file").touch()
    train("--metrics-port", port, "--metrics-file", tmp_path / "file" / "x")
    assert train("--metrics-port", port).status == 0


@pytest.mark.dist
def test_prometheus_reads_a_run(task):  # noqa: F811
    path, data = task
    path.write_text(TASK.replace("logit = model", "print(flush=True)\n        logit = model"))
    command = [sys.executable, "-m", "monolith.cli.main", "train", path, "--data", data]
    command += ["--metrics-port", "0", "--set", "train.log_every=1"]  # the data has no end
    program = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with program as process, limited(process.kill):
        for line in process.stderr:
            if match := re.search(r"metrics: (http://127\.0\.0\.1:\d+/metrics)", line):
                break
        for _ in range(5):
            process.stdout.readline()
        with urllib.request.urlopen(match[1]) as answer:
            text = answer.read().decode()
        process.terminate()
        process.communicate(timeout=120)
    assert "monolith_train_loss " in text
    assert process.returncode == 143
