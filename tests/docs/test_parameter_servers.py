"""The commands of docs/parameter_servers.md, with real servers beside the trainer."""

import doctest
import re
import shlex
import signal
import subprocess
import sys
from importlib import import_module

import pytest
import typer

from tests.docs.pages import check_command, console_cases, page

NAME = "docs/parameter_servers.md"
PAGE = page(NAME)

pytestmark = pytest.mark.dist


class Shell:
    """Runs the commands of a console block; `&` begins a process, and `kill %1` ends the first."""

    def __init__(self, folder):
        self._folder, self._servers = folder, []

    def run(self, capsys, monkeypatch, command, shown):
        if command.endswith(" &"):
            arguments = shlex.split(command.removesuffix(" &"))[1:]
            process = subprocess.Popen(
                [sys.executable, "-m", "monolith.cli.main", *arguments],
                cwd=self._folder,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._servers.append(process)
            self._check(process.stderr.readline(), shown)
        elif command.startswith("kill %"):
            process = self._servers[int(command.removeprefix("kill %")) - 1]
            process.send_signal(signal.SIGTERM)
            self._check(process.stderr.readline(), shown)
            assert process.wait(60) == 0
        else:
            check_command(capsys, monkeypatch, command, shown)

    def _check(self, printed, shown):
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.OutputChecker().check_output(shown.strip(), printed.strip(), flags), printed

    def close(self):
        for process in self._servers:
            process.kill()
            process.wait(60)
            process.stderr.close()


def test_the_page_works_from_top_to_bottom(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path)
    try:
        for kind, text in re.findall(r"^```(python|console)\n(.*?)^```$", PAGE, re.M | re.S):
            if kind == "python":
                exec(compile(text, NAME, "exec"), {})
            for command, shown in console_cases(text) if kind == "console" else ():
                shell.run(capsys, monkeypatch, command, shown)
    finally:
        shell.close()


def test_options_of_commands_that_are_not_run_exist():
    (others,) = re.findall(r"^```\n((?:monolith .*\n)+)^```$", PAGE, re.M)
    for line in others.splitlines():
        _, name, *arguments = shlex.split(line)
        command = typer.main.get_command(import_module(f"monolith.cli.{name}").app)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in arguments if word.startswith("--")} <= known
