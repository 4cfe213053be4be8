import pytest

from monolith.cli.main import COMMANDS
from tests.docs.pages import blocks, check_command, console_cases, first_cells, page

PAGE = page("docs/cli.md")
CASES = [case for block in blocks(PAGE, "console") for case in console_cases(block)]


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
    check_command(capsys, monkeypatch, command, shown)


def test_the_page_has_every_command():
    assert first_cells(PAGE, "| command |") == list(COMMANDS)
    used = {command.split()[1] for command, _ in CASES}
    assert used >= set(COMMANDS)
