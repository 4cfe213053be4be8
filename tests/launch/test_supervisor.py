"""`Supervisor` with processes of `stand_in.py`."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from monolith.launch import Policy, Role, RoleState
from tests.launch.jobs import (
    events,
    is_gone,
    job,
    once_running,
    role,
    stop_when_running,
)
from tests.meta.tree import ROOT

pytestmark = pytest.mark.dist

WAIT_SECONDS = 20.0


def wait_until(is_true):
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.01)):
        if is_true():
            return
        pause.wait(0.01)
    raise AssertionError(f"not true after {WAIT_SECONDS} seconds")


def kill_first(name):
    def kill(status):
        (pid,) = [role.pid for role in status.roles if role.name == name]
        os.kill(pid, signal.SIGKILL)

    return once_running(kill)


def both(*acts):
    return lambda status: [act(status) for act in acts]


def send(*numbers):
    """An act that sends this process signals when all roles run."""
    return once_running(lambda status: [os.kill(os.getpid(), number) for number in numbers])


# The end of a job


def test_a_job_ends_when_all_workers_have_ended(tmp_path):
    end, _ = job(tmp_path)
    assert (end.status, end.reason) == (0, "all workers ended")
    assert {role.state for role in end.job.roles} == {RoleState.ENDED}


def test_a_worker_that_comes_back_after_worker_0_and_the_servers_have_ended_is_ended(tmp_path):
    late = role("worker", 1, tmp_path, "--deaths", "1", "--stop", "NEVER")
    roles = [role("ps", 0, tmp_path), role("worker", 0, tmp_path), late]
    end, view = job(tmp_path, stop_when_running(tmp_path, 1), roles=roles)
    assert (end.status, end.reason) == (0, "all workers ended")
    assert end.result["name"] == "worker-0"
    assert not any("ps-0" in note for note in view.notes)


def test_the_result_is_the_last_object_of_worker_0(tmp_path):
    end, _ = job(tmp_path)
    assert end.result == {"ended": "steps", "name": "worker-0"}


def test_servers_that_do_not_end_by_themselves_get_sigterm(tmp_path):
    server = role("ps", 0, tmp_path, "--stop", "NEVER")
    end, _ = job(tmp_path, roles=[server, role("worker", 0, tmp_path)])
    assert (end.status, events(tmp_path)) == (0, ["worker-0 ended", "ps-0 SIGTERM"])


def test_servers_that_end_by_themselves_are_left_alone(tmp_path):
    end, _ = job(tmp_path, server_seconds=WAIT_SECONDS)
    assert end.status == 0
    assert "ps-0 ended" in events(tmp_path)


def test_a_stubborn_server_is_killed_and_named_and_the_job_succeeds(tmp_path):
    server = role("ps", 0, tmp_path, "--stop", "NEVER", "--is-stubborn")
    end, view = job(tmp_path, roles=[server, role("worker", 0, tmp_path)], grace_seconds=0.1)
    assert end.status == 0
    assert view.notes == ["ps-0: SIGKILL, not ended after 0.1 s"]


def test_the_view_has_the_figures_of_all_roles(tmp_path):
    _, view = job(tmp_path)
    server, worker, _ = view.statuses[-1].roles
    assert server.figures["rows"] == 7
    assert worker.figures["metrics"] == {"auc": 0.75}
    assert worker.pid is not None


# Restarts


@pytest.mark.parametrize("name", ["ps-0", "worker-0", "worker-1"])
def test_a_killed_role_is_restarted_and_counted(tmp_path, name):
    end, view = job(tmp_path, both(kill_first(name), stop_when_running(tmp_path, 1)))
    restarts = {role.name: role.num_restarts for role in end.job.roles}
    assert end.status == 0
    assert restarts == {"ps-0": 0, "worker-0": 0, "worker-1": 0, name: 1}
    assert view.notes == [f"{name}: signal SIGKILL; restart 1 of 3 in 0.02 s"]


def test_a_role_may_die_as_often_as_allowed(tmp_path):
    roles = [role("worker", 0, tmp_path, "--deaths", "2")]
    end, view = job(tmp_path, stop_when_running(tmp_path, 2), roles=roles, restarts=2)
    assert (end.status, end.job.num_restarts) == (0, 2)
    assert [note.rpartition(" in ")[2] for note in view.notes] == ["0.02 s", "0.04 s"]


def test_a_role_that_dies_too_often_ends_the_job_and_is_named(tmp_path):
    worker = role("worker", 0, tmp_path, "--deaths", "9", "--say", "error: out of luck")
    end, view = job(tmp_path, roles=[role("ps", 0, tmp_path), worker], restarts=1)
    assert (end.status, end.reason) == (1, "worker-0 failed after 1 restart: exit status 3")
    assert view.notes[-1] == (
        "worker-0 failed after 1 restart: exit status 3; its last lines:\n  error: out of luck"
    )
    assert [role.state for role in end.job.roles] == [RoleState.ENDED, RoleState.FAILED]


def test_a_failure_ends_workers_before_servers(tmp_path):
    end, _ = job(tmp_path, kill_first("worker-1"), restarts=0)
    assert end.reason == "worker-1 failed: signal SIGKILL"
    assert events(tmp_path) == ["worker-0 SIGTERM", "ps-0 SIGTERM"]


def test_without_restarts_the_first_death_ends_the_job(tmp_path):
    end, _ = job(tmp_path, kill_first("ps-0"), restarts=0)
    assert (end.status, end.reason) == (1, "ps-0 failed: signal SIGKILL")


@pytest.mark.parametrize(
    "options", [["--code", "2"], ["--code", "1", "--is-mute"]], ids=["wrong usage", "no report"]
)
def test_an_error_at_the_start_is_a_mistake_and_not_repeated(tmp_path, options):
    roles = [role("worker", 0, tmp_path, "--deaths", "9", *options)]
    end, _ = job(tmp_path, roles=roles)
    assert end.reason == f"worker-0 failed: exit status {options[1]}"


def test_a_command_that_does_not_exist_ends_the_job(tmp_path):
    end, view = job(tmp_path, roles=[Role("worker", 0, ("no-such-program",))])
    assert end.reason == "worker-0 failed: exit status 2"
    assert "  error: cannot run no-such-program: No such file" in view.notes[0]


def test_a_server_that_ends_before_the_workers_is_restarted(tmp_path):
    server = role("ps", 0, tmp_path, "--deaths", "1", "--code", "0")
    end, view = job(
        tmp_path,
        stop_when_running(tmp_path, 1),
        roles=[server, role("worker", 0, tmp_path)],
    )
    assert view.notes == ["ps-0: exit status 0; restart 1 of 3 in 0.02 s"]
    assert end.status == 0


# Signals


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_a_signal_ends_the_workers_and_then_the_servers(tmp_path, number, status):
    end, _ = job(tmp_path, send(number))
    order = [line.split("-")[0] for line in events(tmp_path)]
    assert (end.status, end.reason) == (status, f"ended by {number.name}")
    assert order == ["worker", "worker", "ps"]
    assert {line.split()[1] for line in events(tmp_path)} == {"SIGTERM"}


def test_who_does_not_end_in_time_is_killed_and_named(tmp_path):
    roles = [role("ps", 0, tmp_path), role("worker", 0, tmp_path, "--is-stubborn")]
    end, view = job(tmp_path, send(signal.SIGTERM), roles=roles, grace_seconds=0.4)
    assert end.status == 143
    assert "worker-0: SIGKILL, not ended after 0.3 s" in view.notes


def test_a_second_signal_kills_at_once(tmp_path):
    roles = [role(kind, 0, tmp_path, "--is-stubborn") for kind in ("ps", "worker")]

    def hurry(status):
        if status.roles[1].state is RoleState.STOPPING:
            os.kill(os.getpid(), signal.SIGINT)

    end, view = job(tmp_path, both(send(signal.SIGINT), hurry), roles=roles, grace_seconds=600)
    assert end.status == 130
    assert view.notes[1:] == [f"{name}-0: SIGKILL, a second signal" for name in ("worker", "ps")]


def test_a_save_that_makes_progress_is_not_cut_off(tmp_path):
    looks = []

    def save_state():
        looks.append(True)
        if len(looks) == 4:
            (tmp_path / "STOP").touch()
        return len(looks)

    worker = role("worker", 0, tmp_path, "--is-stubborn")
    _, view = job(
        tmp_path, send(signal.SIGTERM), roles=[worker], grace_seconds=0.8, save_state=save_state
    )
    assert events(tmp_path) == ["worker-0 SIGTERM"]
    assert [note for note in view.notes if "SIGKILL" in note] == []


def test_a_signal_that_the_launcher_ignores_stays_ignored(tmp_path):
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        end, _ = job(tmp_path, both(send(signal.SIGHUP), stop_when_running(tmp_path)))
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert end.status == 0


def test_handlers_of_signals_are_restored(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    job(tmp_path)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_reader_of_stdout_that_is_gone_ends_the_job(tmp_path):
    def leave(status):
        raise BrokenPipeError

    end, _ = job(tmp_path, once_running(leave))
    assert (end.status, end.reason) == (1, "the reader of stdout is gone")


# Processes that stay


LAUNCHER = """
import sys
from pathlib import Path
from tests.launch.jobs import job, once_running

job(Path(sys.argv[1]), once_running(lambda status: print(
    *(role.pid for role in status.roles), flush=True)))
"""


@pytest.fixture
def launcher(tmp_path):
    """A launcher in a process of its own, and the numbers of the processes of its roles."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = [int(word) for word in process.stdout.readline().split()]
    yield process, pids
    process.kill()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(WAIT_SECONDS)
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_role_outlives_the_launcher(launcher, number):
    process, pids = launcher
    assert len(pids) == 3
    process.send_signal(number)
    process.wait(WAIT_SECONDS)
    wait_until(lambda: all(map(is_gone, pids)))


def test_a_launcher_that_fails_leaves_no_role(tmp_path):
    pids = []

    def fail(status):
        pids.extend(role.pid for role in status.roles)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job(tmp_path, once_running(fail))
    assert len(pids) == 3
    assert all(map(is_gone, pids))


def test_processes_that_a_role_started_end_with_it(tmp_path):
    job(tmp_path, roles=[role("worker", 0, tmp_path, "--with-child")])
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: is_gone(child))


# Output


def test_a_log_has_both_outputs_of_every_start(tmp_path):
    roles = [role("worker", 0, tmp_path, "--deaths", "1", "--say", "hello")]
    job(tmp_path, stop_when_running(tmp_path, 1), roles=roles)
    lines = (tmp_path / "worker-0.log").read_text().splitlines()
    marks = [line.split(" at ")[0] for line in lines if line.startswith("-- ")]
    ends = [f"-- ended: exit status {code}" for code in (3, 0)]
    assert marks == ["-- start 1", ends[0], "-- start 2", ends[1]]
    assert (lines.count("hello"), sum('"step": 20' in line for line in lines)) == (2, 2)


def test_lines_of_stderr_are_told_with_the_name_of_the_role(tmp_path):
    _, view = job(tmp_path, roles=[role("worker", 0, tmp_path, "--say", "hello\nto you")])
    assert view.lines == [("worker-0", "hello"), ("worker-0", "to you")]


def test_text_on_stdout_is_told_and_json_is_not(tmp_path):
    program = "print('{\"ended\": 1}'); print('text'); print('no newline', end='')"
    worker = Role("worker", 0, (sys.executable, "-S", "-c", program))
    end, view = job(tmp_path, roles=[worker])
    assert (end.result, view.lines) == (
        {"ended": 1},
        [("worker-0", "text"), ("worker-0", "no newline")],
    )


def test_much_output_is_read_to_its_end(tmp_path):
    program = "for i in range(50_000): print('line', i)"
    worker = Role("worker", 0, (sys.executable, "-S", "-c", program))
    _, view = job(tmp_path, roles=[worker])
    assert len(view.lines) == 50_000
    assert (tmp_path / "worker-0.log").read_text().count("\nline ") == 50_000


@pytest.mark.parametrize("name", ["restarts", "pause_seconds", "grace_seconds", "server_seconds"])
def test_a_policy_has_no_negative_numbers(name):
    with pytest.raises(ValueError, match=rf"\[Policy\] expected {name} >= 0, got -1"):
        Policy(**{name: -1})
