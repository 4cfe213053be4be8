"""The commands of docs/parameter_servers.md, with real servers beside the trainer."""

import re
import shlex
from importlib import import_module

import pytest
import typer

from tests.docs.pages import page
from tests.docs.shell import Shell

NAME = "docs/parameter_servers.md"
PAGE = page(NAME)

pytestmark = pytest.mark.dist


def test_the_page_works_from_top_to_bottom(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path)
    try:
        shell.run_page(capsys, monkeypatch, NAME)
    finally:
        shell.close()


def test_options_of_commands_that_are_not_run_exist():
    (others,) = re.findall(r"^```\n((?:monolith .*\n)+)^```$", PAGE, re.M)
    for line in others.splitlines():
        _, name, *arguments = shlex.split(line)
        command = typer.main.get_command(import_module(f"monolith.cli.{name}").app)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in arguments if word.startswith("--")} <= known
