"""`monolith launch` with processes of `tests/launch/fake_monolith.py` as its roles."""

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

from monolith.launch import RunFolder
from tests.cli.run import run

pytestmark = pytest.mark.dist

FAKE = Path(__file__).parents[1] / "launch" / "fake_monolith.py"


@pytest.fixture
def launch(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("task.py", "failing.py"):
        (tmp_path / name).touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("monolith.cli.launch.PROGRAM", (sys.executable, "-S", str(FAKE)))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(6))
    return lambda *arguments: run(capsys, monkeypatch, "launch", *arguments)


def last_line(ran):
    return ran.err.splitlines()[-1]


def test_a_job_runs_to_its_end(launch, tmp_path):
    ran = launch("task.py", "--ps", "2", "--workers", "2", "--run", "run")
    assert (ran.status, ran.out) == (0, "")
    logs = re.escape(str(tmp_path / "run" / "logs"))
    text = rf"exit 0: all workers ended \(\d+ s, 0 restarts\); logs: {logs}"
    assert re.fullmatch(text, last_line(ran))
    assert sorted(os.listdir(tmp_path / "run" / "logs")) == [
        "ps-0.log",
        "ps-1.log",
        "worker-0.log",
        "worker-1.log",
    ]


def test_roles_get_the_options(launch):
    options = ["--data", "a", "--set", "x=1", "--checkpoints", "saves", "--save-every", "5"]
    options += ["--save-seconds", "2.5", "--full-every", "3", "--save-rate", "9", "--resume"]
    options += ["--device", "cpu"]
    ran = launch("task.py", *options, "--server-timeout", "7", "--transfer", "float16", "--tcp")
    (server,) = [line for line in ran.err.splitlines() if line.startswith("ps-0 | arguments")]
    (worker,) = [line for line in ran.err.splitlines() if line.startswith("worker-0 | arguments")]
    assert "--bind 127.0.0.1:0 " in server
    assert worker.endswith(
        "--device cpu --checkpoints saves --save-every 5 --save-seconds 2.5 --full-every 3 "
        "--save-rate 9.0 --resume --server-timeout 7.0 --transfer float16 --data a "
        "--set train.threads=3 --set x=1 --no-hints --json"
    )


def test_roles_get_the_discovery(launch, tmp_path):
    ran = launch("task.py", "--discovery", "job")
    assert "--discovery job --bind ipc:///" in ran.err
    assert "--servers job --num-servers 1" in ran.err


def test_the_variable_of_each_role_says_its_place(launch, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    cluster = {"ps": ["a:1", "b:1"], "chief": ["c:1"], "worker": ["d:1"]}
    config = {"cluster": cluster, "task": {"type": "ps", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    (tmp_path / "tf-config:").mkdir()  # where the fake roles meet
    ran = launch("task.py", "--discovery", "tf-config:", "--run", "run")
    assert ran.status == 0
    tasks = {}
    for log in (tmp_path / "run" / "logs").iterdir():
        (text,) = re.findall(r"'TF_CONFIG=(.*?)' ", log.read_text())
        assert json.loads(text)["cluster"] == cluster
        tasks[log.stem] = json.loads(text)["task"]
        (said,) = [line for line in ran.err.splitlines() if line.startswith(f"{log.stem} | arg")]
        assert "--bind" not in said
    assert tasks == {
        "ps-0": {"type": "ps", "index": 0},
        "ps-1": {"type": "ps", "index": 1},
        "worker-0": {"type": "chief", "index": 0},
        "worker-1": {"type": "worker", "index": 0},
    }


def test_json_has_the_end_as_its_last_object(launch):
    ran = launch("task.py", "--json")
    end = json.loads(ran.out.splitlines()[-1])
    assert (end["event"], end["status"], end["rows"]) == ("ended", 0, 7)
    assert end["result"] == {"ended": "steps", "num_steps": 2}


def test_a_failure_names_the_role_its_words_and_the_logs(launch, tmp_path):
    ran = launch("failing.py")
    (folder,) = os.listdir(tmp_path / "tmp")
    assert ran.status == 1
    assert "worker-0 failed: exit status 1; its last lines:\n  arguments" in ran.err
    assert "\n  error: expected better days\n" in ran.err
    assert last_line(ran).startswith("exit 1: worker-0 failed: exit status 1 (")
    assert last_line(ran).endswith(f"logs: {tmp_path / 'tmp' / folder / 'logs'}")


def test_the_temporary_folder_goes_after_a_success(launch, tmp_path):
    ran = launch("task.py")
    assert os.listdir(tmp_path / "tmp") == []
    assert "logs" not in last_line(ran)


@pytest.mark.parametrize("has_saved", [True, False])
def test_a_failure_with_a_checkpoint_says_how_to_go_on(launch, tmp_path, has_saved):
    (tmp_path / "saves").mkdir()
    if has_saved:
        (tmp_path / "saves" / "model.ckpt-4.manifest.json").touch()
    ran = launch("failing.py", "--checkpoints", "saves")
    text = "\nto go on: monolith launch failing.py --checkpoints saves --resume\n"
    assert (text in ran.err) == has_saved


@pytest.mark.parametrize(
    ("options", "file", "variable"),
    [
        (["--set", "train.threads=1"], None, None),
        ([], {"train": {"threads": 1}}, None),
        ([], {"train.threads": 1}, None),
        ([], None, "1"),
    ],
)
def test_threads_that_the_user_sets_stay(launch, monkeypatch, tmp_path, options, file, variable):
    if file is not None:
        (tmp_path / "s.json").write_text(json.dumps(file))
        options = ["--settings", "s.json"]
    if variable is not None:
        monkeypatch.setenv("MONOLITH_SET_TRAIN__THREADS", variable)
    assert "train.threads=3" not in launch("task.py", *options).err


def test_a_key_of_a_module_is_a_task(launch, tmp_path):
    (tmp_path / "ranker_of_test.py").touch()
    assert launch("ranker_of_test.Ranker").status == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["none.py"], "expected a task file or a key module.CLASS, got 'none.py'; no such file"),
        (["none.py:Ranker"], "got 'none.py:Ranker'"),
        (["no_such_module.Ranker"], "got 'no_such_module.Ranker'"),
        (["task.py", "--ps", "0"], "greater than or equal to 1"),
        (["task.py", "--workers", "0"], "greater than or equal to 1"),
        (["task.py", "--discovery", "etcd://a:1/b"], "expected a folder or one of file:DIR"),
        (["task.py", "--discovery", "tf-config:"], "tf-config: with the variable TF_CONFIG, got"),
        (["task.py", "--restarts", "-1"], "greater than or equal to 0"),
        (["task.py", "--run", "task.py/run"], "a folder that can be written, got 'task.py/run': N"),
        (["task.py", "--checkpoints", "task.py/x"], "be written, got 'task.py/x': Not a directory"),
        (["task.py", "--settings", "none.json"], "[settings] expected a file, got none at 'none."),
    ],
)
def test_wrong_usage_starts_nothing(launch, tmp_path, options, text):
    ran = launch(*options)
    assert ran.status == 2
    assert text in " ".join(ran.err.replace("│", "").split())
    assert "logs:" not in ran.err
    assert os.listdir(tmp_path / "tmp") == []


def test_a_run_folder_has_one_launcher(launch, tmp_path):
    with RunFolder(str(tmp_path / "run")):
        ran = launch("task.py", "--run", "run")
    assert ran.status == 2
    assert f"got a second one while process {os.getpid()} runs" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        *(["--ps", "1"], ["--workers", "1"], ["--tcp"], ["--print", "slurm"], ["--control"]),
        *(["--discovery", "zk://h:1/job"], ["--data-service", "h:1"], ["--server-timeout", "3"]),
    ],
)
def test_ranks_refuse_the_options_of_servers_and_workers(capsys, monkeypatch, tmp_path, words):
    task = tmp_path / "task.py"
    task.write_text("")
    ran = run(capsys, monkeypatch, "launch", task, "--ranks", "2", *words)
    assert ran.status == 2
    assert f"expected no {words[0]} with --ranks, got one" in ran.err
