import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

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
    for name in ("train.txt", "eval.txt", "day_0", "day_1"):
        (tmp_path / name).write_text((test_criteo.FIRST + test_criteo.SECOND) * 10)
    return tmp_path


def run(folder, program, line):
    """What a line of the page prints."""
    words = [str(program), *shlex.split(line)[1:]]
    result = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.dist
@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[pytest.mark.slow] * (line == SLOW)) for line in PROGRAMS]
)
def test_a_program_shows_loss_and_score(folder, line):
    assert line.startswith("python examples/")
    result = run(folder, sys.executable, line)
    *_, step, last = result.stdout.splitlines()
    assert re.fullmatch(r"step +\d+  loss \d\.\d{4} +[\d,]+ samples/s +[\d,]+ rows", step)
    assert re.match(r"evaluation  loss \d\.\d{4}  auc ", last)
    assert result.stderr == ""


@pytest.mark.dist
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_trains_and_evaluates(folder, line):
    assert line.startswith("monolith train examples/")
    result = run(folder, Path(sys.executable).parent / "monolith", line)
    assert re.search(r"^eval: loss \d\.\d{4}, auc ", result.stderr, re.M)


def test_the_table_lists_every_program():
    programs = [path for path in (ROOT / "examples").glob("*.py") if "Example:" in path.read_text()]
    assert {path.name for path in programs} == set(first_cells(PAGE, "| program |"))
