import os
import re
import shlex
import subprocess
import sys

import pytest

from monolith.cli.task_file import load_task_class
from tests.docs.pages import blocks, first_cells, page
from tests.examples import test_criteo, test_dlrm, test_movielens
from tests.meta.tree import ROOT

PAGE = page("docs/examples.md")
PROGRAMS, COMMANDS = (block.splitlines() for block in blocks(PAGE, "sh"))
SLOW = "python examples/dlrm.py"


@pytest.fixture
def folder(tmp_path):
    """Has the files that the commands name."""
    os.symlink(ROOT / "examples", tmp_path / "examples")
    for name in ("ml-1m", "logs", "held_out"):
        (tmp_path / name).mkdir()
    ratings = [(n % 7, n % 11, 1 + n % 5, n) for n in range(100)]
    test_movielens.write(tmp_path / "ml-1m", ratings, "ratings.dat")
    for name in ("logs", "held_out"):
        test_dlrm.write(tmp_path / name / "part.parquet", 20)
    for name in ("train.txt", "eval.txt"):
        (tmp_path / name).write_text((test_criteo.FIRST + test_criteo.SECOND) * 10)
    return tmp_path


@pytest.mark.dist
@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[pytest.mark.slow] * (line == SLOW)) for line in PROGRAMS]
)
def test_a_program_runs_as_the_page_says(folder, line):
    python, *arguments = shlex.split(line)
    assert python == "python"
    result = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "evaluation  loss " in result.stdout


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_names_a_task_file(line):
    program, command, file, *options = shlex.split(line)
    assert (program, command) == ("monolith", "train")
    assert load_task_class(str(ROOT / file)).Settings
    assert all(re.fullmatch(r"--data|(train|eval)=\S+", option) for option in options)


def test_the_table_lists_every_program():
    programs = [path for path in (ROOT / "examples").glob("*.py") if "Example:" in path.read_text()]
    assert {path.name for path in programs} == set(first_cells(PAGE, "| program |"))
