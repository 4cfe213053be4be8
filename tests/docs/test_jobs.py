"""The commands, options and fields of docs/jobs.md."""

import re
import shlex
from importlib import import_module

import typer

from monolith.cli.main import COMMANDS
from monolith.launch import JobEnd, JobStatus, JobView, RoleState, RoleStatus
from monolith.launch.supervisor import Policy
from tests.docs.pages import blocks, first_cells, first_rows, page

PAGE = page("docs/jobs.md")


def parameters(name):
    command = typer.main.get_command(import_module(f"monolith.cli.{name}").app)
    return {option: parameter for parameter in command.params for option in parameter.opts}


def test_options_of_the_commands_exist():
    lines = re.findall(r"^monolith (\S+) (.*)$", "".join(blocks(PAGE, "")), re.M)
    assert {name for name, _ in lines} == {"launch", "ps", "worker"}
    for name, words in lines:
        if name in COMMANDS:
            options = {word for word in shlex.split(words) if word.startswith("--")}
            assert options <= parameters(name).keys()


def test_options_in_the_text_are_those_of_launch():
    others = {"--index", "--num-servers", "--num-workers", "--discovery", "--servers"}
    named = set(re.findall(r"--[a-z][a-z-]+", PAGE)) - others
    assert named <= parameters("launch").keys()


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
