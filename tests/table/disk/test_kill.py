"""SIGKILL at random instants of a save: the one before still loads, no partial one is visible."""

import os
import random
import signal
import time

import pytest
import torch

from monolith.table.disk import load_table, save_tables
from tests.forker import started
from tests.table.disk.saver import DIM, NUM_KEYS

pytestmark = pytest.mark.dist


@pytest.fixture
def saver():
    with started("tests.table.disk.saver") as process:
        yield process


def killed_after(saver, path, first, seconds):
    """Start at a version, kill when the first is saved and some time has passed; the last saved."""
    saver.stdin.write(f"{path} {first}\n")
    child, last = None, None
    while child is None or last is None:  # the order of these lines is open
        line = saver.stdout.readline().strip()
        if line.startswith("child"):
            child = int(line.split()[1])
        else:
            last = int(line)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    while (line := saver.stdout.readline().strip()) != "ended":
        last = int(line)
    return last


def check(path, last):
    """The save is the last one that was told of, or the next, and whole."""
    table = load_table(path)
    weights = table.lookup(torch.arange(NUM_KEYS))
    version = int(weights[0, 0])
    assert version in (last, last + 1)
    assert torch.equal(weights, torch.full((NUM_KEYS, DIM), float(version)))
    assert len(table) == NUM_KEYS
    assert table.stats()["num_candidates"] == NUM_KEYS
    return version


def run_kills(saver, path, num_kills):
    numbers, version = random.Random(7), 0
    for _ in range(num_kills):
        last = killed_after(saver, path, version + 1, numbers.uniform(0, 0.15))
        version = check(path, last)
    save_tables(load_table(path), path)
    assert len([name for name in os.listdir(path) if name.startswith("data-")]) == 1
    assert not (path / "manifest.json.new").exists()
    check(path, version)


def test_a_killed_save_leaves_the_one_before(saver, tmp_path):
    run_kills(saver, tmp_path, 5)


@pytest.mark.slow
def test_fifty_killed_saves_leave_the_one_before(saver, tmp_path):
    run_kills(saver, tmp_path, 50)
