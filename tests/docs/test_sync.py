"""The commands, options and numbers of docs/sync.md."""

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

from examples import demo_sync
from monolith.cluster.ranks import dense_sync, rank_group, rank_watch
from monolith.launch import Policy
from tests.docs.pages import blocks, console_cases, page
from tests.docs.shell import Shell
from tests.meta.tree import ROOT

NAME = "docs/sync.md"
PAGE = page(NAME)


def parameters(name):
    command = typer.main.get_command(import_module(f"monolith.cli.{name}").app)
    return {option: parameter for parameter in command.params for option in parameter.opts}


@pytest.mark.dist
def test_the_page_works_from_top_to_bottom(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path)
    for kind, text in re.findall(r"^```(python|console)\n(.*?)^```$", PAGE, re.M | re.S):
        if kind == "python":
            exec(compile(text, NAME, "exec"), {})
        for command, shown in console_cases(text) if kind == "console" else ():
            words = shlex.split(command)
            if words[0] != "torchrun":
                shell.run(capsys, monkeypatch, command, shown)
                continue
            torchrun = [sys.executable, "-m", "torch.distributed.run"]
            done = subprocess.run(
                [*torchrun, *words[1:]], capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stderr
            shell._check(done.stderr, shown)


def test_options_in_the_text_exist():
    known = {name for command in ("launch", "train") for name in parameters(command)}
    of_torchrun = {"--standalone", "--nproc-per-node", "--max-restarts"}
    assert {*re.findall(r"--[a-z][a-z-]+", PAGE)} <= known | of_torchrun


def test_the_numbers_are_the_defaults():
    assert parameters("launch")["--restarts"].default == Policy().restarts == 3
    assert parameters("train")["--rank-timeout"].default == rank_group.WAIT_SECONDS == 300
    assert rank_group.START_SECONDS == 600
    assert rank_watch._SILENT_SECONDS == 2
    assert dense_sync._BUCKET_BYTES == 4 << 20


def test_the_limits_of_the_demo_are_those_of_the_page():
    assert f"at most {demo_sync.EQUAL_AUC:.0e} (measured".replace("e-06", "e-6") in PAGE
    assert f"The demo accepts {demo_sync.CLOSE_AUC:.0e}".replace("e-03", "e-3") in PAGE
    assert demo_sync.EQUAL_STEPS == 4 * demo_sync.STEPS_PER_DAY
    assert "demo-sync" in phony_targets()


def phony_targets():
    (line,) = (x for x in (ROOT / "Makefile").read_text().splitlines() if x.startswith(".PHONY:"))
    return line.split()


def test_every_command_is_run():
    shown = "".join(blocks(PAGE, "console"))
    assert [command.split()[0] for command, _ in console_cases(shown)] == ["monolith", "torchrun"]
    assert Path(import_module("monolith.__main__").__file__).name == "__main__.py"
