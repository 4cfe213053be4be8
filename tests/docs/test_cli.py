import doctest
import re
import shlex

import pytest

from monolith.cli.main import COMMANDS
from tests.cli.run import run
from tests.docs.pages import blocks, first_cells, page

PAGE = page("docs/cli.md")
CASES = [
    (command, shown)
    for block in blocks(PAGE, "console")
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What the page's Python block makes, and a home for what is installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    (code,) = blocks(PAGE, "python")
    exec(compile(code, "docs/cli.md", "exec"), {})


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("command", "shown"), CASES)
def test_a_command_prints_what_the_page_shows(capsys, monkeypatch, command, shown):
    program, *arguments = shlex.split(command)
    ran = run(capsys, monkeypatch, *arguments)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    printed = f"{ran.out.strip()}\n{ran.err}".strip()
    assert program == "monolith"
    assert doctest.OutputChecker().check_output(shown.strip(), printed, flags), printed
    assert (ran.status > 0) == ("error: " in shown)


def test_the_page_has_every_command():
    assert first_cells(PAGE, "| command |") == list(COMMANDS)
    used = {command.split()[1] for command, _ in CASES}
    assert used >= set(COMMANDS)
