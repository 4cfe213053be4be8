"""The commands, options and numbers of docs/data_service.md."""

import inspect
import re
import tempfile

import pytest
import typer

from monolith.cli import data_service, launch, train
from monolith.cluster.data_service import DataWorkerProcess, ServiceOptions
from monolith.cluster.data_service.service_host import LIMITS
from tests.docs.pages import blocks, console_cases, page
from tests.docs.shell import Shell

NAME = "docs/data_service.md"
PAGE = page(NAME)


@pytest.mark.dist
def test_the_page_works_from_top_to_bottom(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory() as sockets:  # no port that others take
        shell = Shell(tmp_path, {"127.0.0.1:5050": f"ipc://{sockets}/d"})
        try:
            shell.run_page(capsys, monkeypatch, NAME)
        finally:
            shell.close()


def test_every_command_of_the_page_is_run():
    shown = "".join(blocks(PAGE, "console"))
    commands = {command.split()[1] for command, _ in console_cases(shown)}
    assert commands == {"data-service", "train", "launch", "%2"}


def test_options_in_the_text_exist():
    commands = [typer.main.get_command(module.app) for module in (launch, train)]
    commands += typer.main.get_command(data_service.app).commands.values()
    known = {option for command in commands for each in command.params for option in each.opts}
    assert {*re.findall(r"--[a-z][a-z-]+", PAGE)} <= known


def test_the_numbers_are_the_defaults():
    options = ServiceOptions("a:1")
    assert (options.away_seconds, options.silent_seconds, options.window) == (2, 30, 2)
    assert (options.timeout_seconds, LIMITS.lease_seconds) == (120, 15)
    assert inspect.signature(DataWorkerProcess).parameters["ahead"].default == 4
    for text in ("after 2 s without a connection, or 30 s", "120 s", "after 15 s", "batches (4)"):
        assert text in PAGE
