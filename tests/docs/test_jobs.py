"""The commands, options and fields of docs/jobs.md."""

import re
import tempfile
from importlib import import_module

import pytest
import typer

from monolith.launch import JobEnd, JobStatus, JobView, RoleState, RoleStatus
from monolith.launch.supervisor import Policy
from tests.docs.pages import blocks, console_cases, first_cells, first_rows, page
from tests.docs.shell import Shell

NAME = "docs/jobs.md"
PAGE = page(NAME)


def parameters(name):
    command = typer.main.get_command(import_module(f"monolith.cli.{name}").app)
    return {option: parameter for parameter in command.params for option in parameter.opts}


@pytest.mark.dist
def test_the_page_works_from_top_to_bottom(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory() as sockets:  # a short path, and no port that others take
        hosts = {f"10.0.0.{i}:7000": f"ipc://{sockets}/{i}" for i in (1, 2)}
        shell = Shell(tmp_path, {**{f"tcp://{host}": hosts[host] for host in hosts}, **hosts})
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
    known = {name for command in ("launch", "ps", "worker") for name in parameters(command)}
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
