"""`monolith control` and `monolith inspect --job`, against a controller of this process."""

import dataclasses
import json
import time

import pytest

from monolith.control import (
    ADDRESS_FILE,
    TOKEN_FILE,
    ControllerServer,
    ControlOptions,
    WorkerState,
)
from tests.cli.run import run
from tests.control.runs import FakeRun


@pytest.fixture
def fake():
    return FakeRun()


@pytest.fixture
def server(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ControllerServer("saves", fake, ControlOptions(grace_seconds=0.5)) as server:
        yield server


@pytest.fixture
def control(server, capsys, monkeypatch):
    return lambda *words: run(capsys, monkeypatch, "control", "--model-dir", "saves", *words)


@pytest.fixture
def inspect(server, capsys, monkeypatch):
    return lambda *words: run(capsys, monkeypatch, "inspect", *words)


def test_status_shows_each_worker(control):
    ran = control("status")
    words = [line.split() for line in ran.out.splitlines()]
    assert ["0", "running", "4", "12", "0", "s", "ago"] in words
    assert ["1", "silent", "3", "0", "11", "s", "ago"] in words
    assert ran.err == (
        "training: task Clicks, step 7, 56 samples, 2 pushes lost; saves/model.ckpt-5\n"
    )


def test_status_as_json_has_all_fields(control):
    facts = json.loads(control("status", "--json").out)
    workers = facts.pop("workers")
    assert facts == {
        "step": 7,
        "is_stopped": False,
        "checkpoint": "saves/model.ckpt-5",
        "samples": 56,
        "lost_pushes": 2,
        "task": "Clicks",
    }
    assert workers[1] == {
        "index": 1,
        "state": "silent",
        "step": 3,
        "samples_per_second": 0.0,
        "heard_seconds": 11.0,
    }


def test_stop_names_who_stands_and_who_is_silent(control, fake):
    ran = control("stop")
    assert (ran.status, fake.is_stopped) == (0, True)
    assert ran.err == (
        "stopped at step 7: worker 0 stands; without worker 1, silent for 11 seconds; next: "
        "monolith control --model-dir saves resume\n"
    )


def stands(status, is_parked):
    """The status of a stopped run whose worker 0 stands, or is in a step."""
    state = WorkerState.PARKED if is_parked else WorkerState.RUNNING
    workers = [dataclasses.replace(status.workers[0], state=state)]
    return dataclasses.replace(status, is_stopped=True, workers=workers)


def test_a_stop_waits_until_all_stand(control, fake, monkeypatch):
    statuses = iter([False, False, True])
    status = fake.status
    monkeypatch.setattr(fake, "status", lambda seconds: stands(status(), next(statuses)))
    assert control("stop").status == 0
    assert next(statuses, None) is None


def test_a_stop_that_takes_too_long_names_the_workers(control, fake, monkeypatch):
    status = fake.status
    monkeypatch.setattr(fake, "status", lambda seconds: stands(status(), False))
    ran = control("stop", "--wait", "0.2", "--json")
    assert (ran.status, json.loads(ran.out)["is_stopped"]) == (1, True)
    assert "expected all workers to stand within 0.2 seconds, got worker 0 in a step" in ran.err


def test_a_stop_that_another_operator_takes_back_says_so_at_once(control, fake, monkeypatch):
    monkeypatch.setattr(fake, "stop", lambda seconds: None)  # and somebody resumes
    start = time.monotonic()
    ran = control("stop", "--wait", "20", "--json")
    assert time.monotonic() - start < 10
    assert (ran.status, json.loads(ran.out)["is_stopped"]) == (1, False)
    assert "got a resume by another operator; training goes on, at step 7" in ran.err
    assert "stays stopped" not in ran.err.partition("got a resume")[2]


def test_a_second_stop_says_what_to_do(control):
    control("stop")
    ran = control("stop")
    assert ran.status == 1
    assert ran.err == (
        "error: training is stopped already; next: monolith control --model-dir saves resume\n"
    )


def test_resume_goes_on_and_says_if_there_was_no_stop(control, fake):
    control("stop")
    assert control("resume").err == "training goes on, at step 7\n"
    assert not fake.is_stopped
    assert control("resume").err == "training was not stopped, at step 7\n"


def test_save_prints_the_checkpoint_and_waits_as_long_as_it_may(control, fake):
    assert control("save").err == "saved step 7 at saves/model.ckpt-7\n"
    ran = control("save", "--wait", "30", "--json")
    assert json.loads(ran.out) == {"path": "saves/model.ckpt-7", "step": 7}
    assert 590 < fake.limits[0] <= 602
    assert 20 < fake.limits[1] <= 32


def test_a_folder_without_a_controller(control, capsys, monkeypatch):
    ran = run(capsys, monkeypatch, "control", "--model-dir", "other", "status")
    assert (ran.status, ran.out) == (1, "")
    assert f"expected the file {ADDRESS_FILE} of a run with a controller, got none" in ran.err


def test_an_address_at_which_nobody_listens(control, server):
    server._server.stop(None).wait()
    ran = control("status")
    assert ran.status == 1
    assert f"expected the controller of 'saves' at {server.address}, got no answer" in ran.err


@pytest.mark.parametrize("text", ["", "0" * 64])
def test_a_token_that_is_missing_or_of_another_job(control, tmp_path, text):
    (tmp_path / "saves" / TOKEN_FILE).write_text(text)
    ran = control("stop")
    assert ran.status == 1
    assert "expected the token of the run" in ran.err


def test_another_action_is_wrong_usage(control):
    assert control("pause").status == 2


def test_rows_of_a_running_job(inspect):
    ran = inspect("--job", "saves", "--key", "7")
    assert "user[7]" in ran.out
    assert "weight/0" in ran.out
    assert "1.5, -2" in ran.out
    assert "2023-11-14 22:13:20 UTC" in ran.out


def test_rows_of_a_running_job_as_json(inspect):
    assert json.loads(inspect("--job", "saves", "--key", "7", "--json").out) == {
        "table": "user",
        "key": 7,
        "time": 1_700_000_000,
        "columns": {"weight/0": [1.5, -2.0], "state/0/norm": [0.25]},
    }


def test_a_key_without_a_row_and_a_table_that_is_not_there(inspect, fake):
    ran = inspect("--job", "saves", "--key", (1 << 64) - 1)
    assert (ran.status, fake.keys) == (1, [-1])
    assert "expected key 18446744073709551615 in any table of the job of 'saves'" in ran.err
    ran = inspect("--job", "saves", "--key", "8", "--table", "user")
    assert "expected key 8 in table 'user' of the job" in ran.err
    ran = inspect("--job", "saves", "--key", "8", "--table", "missing")
    assert "a table of the run (user), got 'missing'" in ran.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "expected a path, or --job DIR, got none"),
        (["x", "--job", "saves", "--key", "1"], "expected a path, or --job DIR, got both"),
        (["--job", "saves"], "expected --key K with --job, got none"),
        (["--job", "saves", "--verify"], "expected --key K with --job, got --verify"),
    ],
)
def test_wrong_words_of_inspect(inspect, words, text):
    ran = inspect(*words)
    assert (ran.status, ran.err) == (2, f"error: {text}\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--control"], "expected --checkpoints DIR with --control, got none"),
        (["--control-bind", "127.0.0.1:0"], "expected --control with --control-bind, got none"),
        (
            ["--no-control", "--control-tls", "a,b"],
            "expected --control with --control-tls, got none",
        ),
        (
            ["--control", "--checkpoints", "./s", "--control-bind", "10.0.0.1:0"],
            "expected a loopback address or TLS, got '10.0.0.1:0' without cert",
        ),
        (
            ["--control", "--checkpoints", "./s", "--control-tls", "c,"],
            "expected --control-tls as CERT,KEY, got 'c,'",
        ),
    ],
)
def test_wrong_options_of_a_run(capsys, monkeypatch, tmp_path, words, text):
    monkeypatch.chdir(tmp_path)
    run(capsys, monkeypatch, "new", "task.py")
    ran = run(capsys, monkeypatch, "train", "task.py", *words)
    assert ran.status == 2
    assert text in ran.err


def test_a_run_of_the_command_line_has_a_controller(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run(capsys, monkeypatch, "new", "task.py")
    seen, write = [], ControllerServer.__init__

    def noted(server, *arguments):
        write(server, *arguments)
        seen.append(server.address)

    monkeypatch.setattr(ControllerServer, "__init__", noted)
    words = ["--set", "train.steps=3", "--checkpoints", "./saves"]
    assert run(capsys, monkeypatch, "train", "task.py", *words).status == 0
    assert seen == []
    words = [*words, "--control", "--resume", "--set", "train.steps=4"]
    assert run(capsys, monkeypatch, "train", "task.py", *words).status == 0
    assert len(seen) == 1
    assert not (tmp_path / "saves" / ADDRESS_FILE).exists()
