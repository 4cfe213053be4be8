"""Examples that are task files; tests/docs/test_examples.py runs them."""

import subprocess
import sys

import pytest

from examples.movielens import Likes
from examples.run import run_task
from monolith.cli.tasks.task_file import load_task_class
from tests.meta.tree import ROOT

TASKS = {"dlrm": "Ranker", "criteo": "Criteo", "movielens": "Likes"}


@pytest.mark.dist
def test_a_wrong_file_ends_a_program_with_one_line(tmp_path):
    (tmp_path / "u.data").write_text("196\t242\n")
    command = [sys.executable, "examples/movielens.py", str(tmp_path / "u.data")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: [movielens] expected u.data of ml-100k")


def test_a_missing_file_is_named():
    with pytest.raises(SystemExit, match=r"^error: .*no_such_file"):
        run_task(Likes, ["no_such_file"])


def test_a_third_path_is_refused():
    with pytest.raises(SystemExit, match=r"expected one path to train on .*, got 3"):
        run_task(Likes, ["a", "b", "c"])


@pytest.mark.parametrize("name", TASKS)
def test_a_command_finds_the_task_of_the_file(name):
    assert load_task_class(str(ROOT / f"examples/{name}.py")).__name__ == TASKS[name]


@pytest.mark.parametrize("name", TASKS)
def test_a_task_file_is_short(name):
    assert len((ROOT / f"examples/{name}.py").read_text().splitlines()) < 150
