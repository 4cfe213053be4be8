"""SIGKILL at random instants of a save: the newest complete checkpoint restores and verifies."""

import os
import random

import pytest
import torch

from monolith.checkpoint import existing_checkpoints, find
from tests.checkpoint.cases import saved
from tests.checkpoint.killed_saver import NUM_KEYS
from tests.forker import started
from tests.table.disk.test_kill import killed_after

pytestmark = pytest.mark.dist


@pytest.fixture
def saver():
    with started("tests.checkpoint.killed_saver") as process:
        yield process


def check(path, last):
    """The newest checkpoint is one of the last two that were told of, or the next, and whole."""
    checkpoint = find(path, fallback=True)
    version = checkpoint.step
    # The prefix of two versions ago is written anew; for a moment it has no checkpoint at all.
    assert version in (last, last + 1)
    table = checkpoint.load_tables()["user"]
    expected = torch.full((NUM_KEYS, 8), float(version))
    assert torch.equal(table.lookup(torch.arange(NUM_KEYS)), expected)
    assert checkpoint.read_dense()["weight"].tolist() == [float(version)] * 1000
    assert checkpoint.read_trainer() == {"v": version}
    return version


def run_kills(saver, path, num_kills):
    numbers, version = random.Random(7), 0
    for _ in range(num_kills):
        last = killed_after(saver, path, version + 1, numbers.uniform(0, 0.1))
        version = check(path, last)
        assert {os.path.basename(prefix) for prefix in existing_checkpoints(path)} <= {"c-1", "c-2"}
    saved(path / "c-3")  # cleans up what killed saves left
    left = {name for name in os.listdir(path) if ".tmp-" in name or name.endswith(".saving")}
    assert left == set()


def test_a_killed_save_leaves_the_newest_complete_checkpoint(saver, tmp_path):
    run_kills(saver, tmp_path, 10)


@pytest.mark.slow
def test_a_hundred_killed_saves_leave_the_newest_complete_checkpoint(saver, tmp_path):
    run_kills(saver, tmp_path, 100)
