"""SIGKILL at random instants of links and compactions: the newest complete link restores."""

import os
import random

import pytest

from monolith.checkpoint import Chain, existing_checkpoints, find, open_checkpoint
from tests.checkpoint.killed_chain import expected_table
from tests.forker import started
from tests.suites.table_base import assert_same_rows
from tests.table.disk.test_kill import killed_after

pytestmark = pytest.mark.dist


@pytest.fixture
def saver():
    with started("tests.checkpoint.killed_chain") as process:
        yield process


def check(path, last):
    """The newest checkpoint is the last one or the next, and each visible one is whole."""
    checkpoint = find(path, fallback=True)
    assert checkpoint.step in (last, last + 1)
    assert_same_rows(checkpoint.load_tables()["user"], expected_table(checkpoint.step))
    assert checkpoint.read_dense()["weight"].tolist() == [float(checkpoint.step)] * 1000
    assert checkpoint.read_trainer() == {"v": checkpoint.step}
    for prefix in existing_checkpoints(path):
        open_checkpoint(prefix).verify()


def run_kills(saver, path, num_kills):
    numbers = random.Random(7)
    for _ in range(num_kills):
        last = killed_after(saver, path, "", numbers.uniform(0, 0.15))
        check(path, last)
    Chain(path)  # cleans up what killed compactions left
    named = set()
    for prefix in existing_checkpoints(path):
        manifest = open_checkpoint(prefix).manifest
        named |= {prefix + fact.path for fact in manifest.files}
    assets = {f"{folder}/{name}" for folder, _, names in os.walk(path) for name in names}
    visible = {name for name in assets if name.endswith(".arrow")}
    incomplete = {name for name in os.listdir(path) if name.endswith(".saving")}
    started_saves = tuple(
        f"{path}/{name.removesuffix('.manifest.json.saving')}." for name in incomplete
    )
    assert {name for name in visible - named if not name.startswith(started_saves)} == set()


def test_a_killed_chain_leaves_the_newest_complete_link(saver, tmp_path):
    run_kills(saver, tmp_path, 10)


@pytest.mark.slow
def test_a_hundred_killed_chains_leave_the_newest_complete_link(saver, tmp_path):
    run_kills(saver, tmp_path, 100)
