"""Examples that are task files, run as programs."""

import re
import subprocess
import sys

import pytest

from examples.movielens import Likes
from examples.run import run_task
from monolith.cli.task_file import load_task_class
from tests.examples import test_criteo, test_dlrm, test_movielens
from tests.meta.tree import ROOT

TASKS = {"dlrm": "Ranker", "criteo": "Criteo", "movielens": "Likes"}


def run(name, *paths):
    command = [sys.executable, f"examples/{name}.py", *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)


def write_movielens(folder):
    ratings = [(n % 7, n % 11, 1 + n % 5, n) for n in range(200)]
    return [test_movielens.write(folder, ratings, "ratings.dat")]


def write_criteo(folder):
    (folder / "train.txt").write_text((test_criteo.FIRST + test_criteo.SECOND) * 10)
    (folder / "eval.txt").write_text((test_criteo.FIRST + test_criteo.SECOND) * 5)
    return [folder / "train.txt", folder / "eval.txt"]


def write_dlrm(folder):
    return [test_dlrm.write(folder / f"{name}.parquet", 50) for name in ("train", "eval")]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("name", "write"),
    [("movielens", write_movielens), ("criteo", write_criteo), ("dlrm", write_dlrm)],
)
def test_a_program_shows_loss_and_score(tmp_path, name, write):
    result = run(name, *write(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    *_, step, last = result.stdout.splitlines()
    assert re.fullmatch(r"step +\d+  loss \d\.\d{4} +[\d,]+ samples/s +[\d,]+ rows", step)
    assert re.match(r"evaluation  loss \d\.\d{4}", last)


@pytest.mark.dist
def test_a_wrong_file_ends_a_program_with_one_line(tmp_path):
    (tmp_path / "u.data").write_text("196\t242\n")
    result = run("movielens", tmp_path / "u.data")
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
