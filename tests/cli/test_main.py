import functools
import os
import subprocess
import sys

import pytest

from monolith.cli.main import COMMANDS
from monolith.cli.options.panels import PANELS
from tests.cli.run import run

COMMAND_LINES = [(), *((name,) for name in COMMANDS)]
COMMAND_LINES += [("data", "head"), ("data", "stats"), ("data", "convert")]
COMMAND_LINES += [("data-service", "dispatcher"), ("data-service", "worker")]
COMMAND_LINES += [("import", "embedding"), ("import", "parquet")]
COMMAND_LINES += [("export", "rows"), ("export", "torchrec")]


@pytest.fixture
def monolith(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    return functools.partial(run, capsys, monkeypatch)


def completed(words, shell):
    """What a shell is told for the words of an unfinished line."""
    variables = {
        "_MONOLITH_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_TYPER_COMPLETE_ARGS": words,
    }
    code = "import sys, monolith.cli.main as m\ntry: m.main()\n"
    code += "finally: sys.stderr.write(str('torch' in sys.modules))"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("command", COMMAND_LINES)
def test_help_begins_with_an_example_and_fits_a_screen(monolith, command):
    ran = monolith(*command, "--help")
    lines = [line.strip() for line in ran.out.splitlines() if line.strip()]
    assert ran.status == 0
    assert lines[1].startswith(" ".join(["Example: monolith", *command]))
    if command not in [(name,) for name in PANELS]:
        assert len(ran.out.splitlines()) <= SCREEN
        return
    # Too many options for one screen: a panel is seen at a glance, and the page in three screens.
    assert max(map(len, panels(ran.out))) <= SCREEN // 2
    assert len(ran.out.splitlines()) <= 3 * SCREEN


SCREEN = 34  # lines


def panels(page):
    """The lines of each panel of a help page, its frame included."""
    lines = page.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("╭")]
    ends = [i for i, line in enumerate(lines) if line.startswith("╰")]
    return [lines[start : end + 1] for start, end in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("command", PANELS)
def test_options_of_one_purpose_are_in_one_panel(monolith, command):
    page = panels(monolith(command, "--help").out)
    of_title = {lines[0].strip("╭─╮ "): "\n".join(lines) for lines in page}
    assert [title for title in of_title if title not in ("Arguments", "Options")] == list(
        PANELS[command]
    )
    for title, names in PANELS[command].items():
        options = [f"--{name.replace('_', '-')} " for name in names]
        assert [name for name in options if name not in of_title[title]] == []
        assert [name for name in options if name in of_title["Options"]] == []


def test_the_list_of_commands_says_what_each_does(monolith):
    out = monolith("--help").out
    assert [name for name in COMMANDS if f"│ {name} " not in out] == []
    assert out.count("Example:") == 1


def test_h_is_help(monolith):
    assert monolith("inspect", "-h") == monolith("inspect", "--help")


def test_an_unknown_command_is_wrong_usage(monolith):
    ran = monolith("inspekt")
    assert ran.status == 2
    assert "No such command 'inspekt'" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_command_is_completed_without_waiting_for_torch(shell):
    ran = completed("monolith ins", shell)
    assert "inspect" in ran.stdout
    assert "env" not in ran.stdout
    assert ran.stderr == "False"


def test_options_are_completed():
    assert completed("monolith inspect --ver", "bash").stdout.split() == ["--verify"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_of_a_shell_is_shown(monolith, monkeypatch, shell):
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    ran = monolith("--show-completion")
    assert ran.status == 0
    assert f"_MONOLITH_COMPLETE=complete_{shell}" in ran.out


def test_completion_is_installed_for_a_shell(monolith, monkeypatch, tmp_path):
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert monolith("--install-completion").status == 0
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert str(script) in (tmp_path / ".bashrc").read_text()
