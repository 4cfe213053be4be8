"""The commands, options and tables of docs/control.md."""

import re
from importlib import import_module

import pytest
import typer

from monolith.cli.control import Action
from monolith.cluster.job.job_state import WATCH_SECONDS
from monolith.cluster.job.job_workers import SILENT_SECONDS
from monolith.control import ADDRESS_FILE, CERTIFICATE_FILE, TOKEN_FILE, WorkerState
from monolith.control.controller_server import _NUM_SAVES
from monolith.control.grpc_extra import load_messages
from monolith.train.figures import ALERT_FIGURES
from tests.docs.pages import blocks, console_cases, first_cells, page
from tests.docs.shell import Shell

NAME = "docs/control.md"
PAGE = page(NAME)


def options_of(name):
    command = typer.main.get_command(import_module(f"monolith.cli.{name}").app)
    return {
        option: parameter
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


@pytest.mark.dist
def test_the_page_works_from_top_to_bottom(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path)
    try:
        shell.run_page(capsys, monkeypatch, NAME)
    finally:
        shell.close()


def test_every_command_of_the_page_is_run():
    shown = "".join(blocks(PAGE, "console"))
    commands = {command.split()[1] for command, _ in console_cases(shown)}
    assert commands == {"launch", "control", "inspect", "train"}
    assert "\nmonolith " not in "".join(blocks(PAGE, ""))


def test_options_in_the_text_exist():
    commands = ("launch", "control", "inspect", "train", "worker")
    known = {name for command in commands for name in options_of(command)}
    assert {*re.findall(r"--[a-z][a-z-]+", PAGE)} <= known


def test_the_tables_have_every_action_state_file_and_figure():
    assert first_cells(PAGE, "| action |") == [action.value for action in Action]
    assert first_cells(PAGE, "| state |") == [state.value for state in WorkerState]
    files = [ADDRESS_FILE, TOKEN_FILE, CERTIFICATE_FILE]
    assert first_cells(PAGE, "| file in the folder |") == files
    assert all(f"`{figure}`" in PAGE for figure in ALERT_FIGURES)


def test_the_methods_are_those_of_the_services():
    services = [("controller", "Controller"), ("operation", "Operation")]
    for name, service in services:
        methods = load_messages(name).DESCRIPTOR.services_by_name[service].methods
        assert all(f"`{method.name}`" in PAGE for method in methods)


def test_the_numbers_are_the_defaults():
    assert (SILENT_SECONDS, WATCH_SECONDS, _NUM_SAVES) == (10, 3, 4)
    module = import_module("monolith.cli.control")
    assert (module._STOP_SECONDS, module._SAVE_SECONDS) == (60, 600)
