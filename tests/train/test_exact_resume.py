"""A run killed at random instants ends with the same bits as an undisturbed run."""

import os
import random
import signal
import time

import pytest
import torch

from monolith.checkpoint import find, load
from tests.forker import started
from tests.table.disk.cases import assert_same_table
from tests.train.resumable import CASES, LONG, SAVING

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def runner():
    with started("tests.train.resumable") as process:
        yield process


def run(runner, directory, case, kill_after=None, seconds=0.0, until=lambda: True):
    """Train; kill the child some seconds after step number `kill_after` and after `until`."""
    runner.stdin.write(f"{directory} {case}\n")
    child, num_steps = None, 0
    while (line := runner.stdout.readline().strip()) != "ended":
        word, number = line.split()
        child = int(number) if word == "child" else child
        num_steps += word == "step"
        if child is not None and kill_after is not None and num_steps >= kill_after and until():
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
            kill_after = None


def lines_of(directory, name):
    """Return the line of each step in a file; lines of a repeated step must be equal."""
    lines = {}
    for line in (directory / name).read_text().splitlines():
        step, text = line.split(" ", 1)
        assert lines.setdefault(int(step), text) == text
    return lines


def assert_same_end(one, other):
    """Check that two runs have equal last checkpoints, samples and figures."""
    ours, theirs = (load(directory / "saved") for directory in (one, other))
    assert ours.step == theirs.step
    tables, expected = ours.load_tables(), theirs.load_tables()
    for name in ("user", "item"):
        assert_same_table(tables[name], expected[name])
    dense, wanted = ours.read_dense(), theirs.read_dense()
    assert list(dense) == list(wanted)
    assert [name for name in dense if not torch.equal(dense[name], wanted[name])] == []
    assert ours.read_trainer() == theirs.read_trainer()
    for name in ("order.txt", "figures.txt"):
        assert lines_of(one, name) == lines_of(other, name)


@pytest.fixture(scope="module")
def whole(runner, tmp_path_factory):
    """Return the folders of undisturbed runs by case."""
    folders = {case: tmp_path_factory.mktemp(case) for case in CASES}
    for case, folder in folders.items():
        run(runner, folder, case)
    return folders


def check(runner, path, case, seed, whole):
    numbers = random.Random(seed)
    path.mkdir(exist_ok=True)
    for _ in range(3):
        run(runner, path, case, numbers.randint(0, 9), numbers.uniform(0, 0.03))
    run(runner, path, case)
    assert_same_end(path, whole[case])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_that_was_killed_comes_to_the_same(runner, whole, tmp_path, case, seed):
    check(runner, tmp_path, case, seed, whole)


def test_a_run_that_was_killed_while_it_saved_comes_to_the_same(runner, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    run(runner, whole, SAVING)
    numbers, num_resumed, num_torn = random.Random(5), 0, 0
    for _ in range(8):
        steps, seconds = numbers.randint(0, 30), numbers.uniform(0, 0.05)
        run(runner, killed, SAVING, steps, seconds, lambda: marks_of(killed))
        num_resumed += find(killed / "saved") is not None
        num_torn += bool(marks_of(killed))
    run(runner, killed, SAVING)
    assert num_resumed > 2
    assert num_torn > 2
    assert_same_end(killed, whole)


def marks_of(folder):
    """Return the marks of saves that are being written."""
    return list((folder / "saved").glob("*.saving"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_runs_that_were_killed_at_many_instants_come_to_the_same(runner, whole, tmp_path, case):
    for seed in range(2, 10):
        check(runner, tmp_path / str(seed), case, seed, whole)


@pytest.mark.slow
def test_a_thousand_steps_that_were_killed_come_to_the_same(runner, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    numbers = random.Random(0)
    for folder in (whole, killed):
        folder.mkdir()
    run(runner, whole, LONG)
    for _ in range(3):
        run(runner, killed, LONG, numbers.randint(0, 400), numbers.uniform(0, 0.03))
    run(runner, killed, LONG)
    assert len(lines_of(whole, "order.txt")) == 1008
    assert_same_end(killed, whole)


def test_the_runs_have_expired_rows_and_candidates(whole):
    tables = load(whole["mixed"] / "saved").load_tables()
    assert tables["user"].stats()["num_candidates"] > 0
    assert 0 < len(tables["item"]) < 36
