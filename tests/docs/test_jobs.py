"""The commands, options and fields of docs/jobs.md."""

import re
import tempfile
import time
from importlib import import_module

import pytest
import typer

from examples import demo_servers
from monolith.cluster.job.job_client import JobClient
from monolith.cluster.zmq.connect import connect_servers
from monolith.cluster.zmq.curve_keys import read_keys
from monolith.launch import JobEnd, JobStatus, JobView, RoleState, RoleStatus
from monolith.launch.supervisor import Policy
from tests.docs.pages import blocks, console_cases, first_cells, first_rows, page
from tests.docs.shell import Shell
from tests.time_limits import AT_ONCE

NAME = "docs/jobs.md"
PAGE = page(NAME)


def parameters(name):
    command = typer.main.get_command(import_module(f"monolith.cli.{name}").app)
    return {option: parameter for parameter in command.params for option in parameter.opts}


class MeetingShell(Shell):
    """A shell in which worker 0 begins when worker 1 is a part of the job, so that it has steps."""

    def __init__(self, folder, addresses, servers):
        super().__init__(folder, addresses)
        self._hosts = servers

    def run(self, capsys, monkeypatch, command, shown):
        if command.startswith("monolith worker task.py --index 0 "):
            options = {"keys": read_keys("job.keys"), "worker": (0, 2)}
            with connect_servers(self._hosts, **options) as servers, JobClient(servers) as job:
                end = time.monotonic() + AT_ONCE
                while job.others() != [1]:
                    assert time.monotonic() < end
                    time.sleep(0.05)
        super().run(capsys, monkeypatch, command, shown)


@pytest.mark.dist
def test_the_page_works_from_top_to_bottom(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory() as sockets:  # a short path, and no port that others take
        hosts = {f"10.0.0.{i}:7000": f"ipc://{sockets}/{i}" for i in (1, 2)}
        addresses = {**{f"tcp://{host}": hosts[host] for host in hosts}, **hosts}
        shell = MeetingShell(tmp_path, addresses, list(hosts.values()))
        try:
            shell.run_page(capsys, monkeypatch, NAME)
            shell.wait()
        finally:
            shell.close()


def test_every_command_of_the_page_is_run():
    shown = "".join(blocks(PAGE, "console"))
    assert {command.split()[1] for command, _ in console_cases(shown)} == {
        *("launch", "keys", "ps", "worker")
    }
    assert "\nmonolith " not in "".join(blocks(PAGE, ""))


def test_options_in_the_text_exist():
    known = {
        name for command in ("control", "launch", "ps", "worker") for name in parameters(command)
    }
    assert {*re.findall(r"--[a-z][a-z-]+", PAGE)} <= known


def test_the_numbers_are_the_defaults():
    known, policy = parameters("launch"), Policy()
    assert known["--restarts"].default == policy.restarts == 3
    assert known["--grace-seconds"].default == policy.grace_seconds == 10
    assert (policy.pause_seconds, policy.server_seconds) == (0.5, 5)
    assert JobView.__init__.__kwdefaults__["interval_seconds"] == 2


def test_the_table_of_json_has_every_field():
    role = RoleStatus("ps-0", "ps", RoleState.RUNNING)
    rows = [" ".join(cells) for cells in first_rows(PAGE, "| field |")]
    names = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    end = {"status", "reason", "result"} & {*JobEnd._fields}
    assert names == {*JobStatus(0.0, (role,)).as_json(), *role.as_json(), *end}


def test_the_table_of_exits_has_every_status():
    assert first_cells(PAGE, "| exit status |") == ["0", "1", "2", "130, 143, 129"]


def test_the_spread_is_that_of_the_demo():
    assert f"undisturbed runs ({demo_servers.AUC_SPREAD})" in PAGE
