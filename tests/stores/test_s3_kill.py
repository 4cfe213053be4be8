"""SIGKILL at random instants of a save into a bucket: the newest complete checkpoint restores."""

import random

import pytest
import torch

from monolith.checkpoint import Contents, existing_checkpoints, find, open_checkpoint, save
from tests.forker import started
from tests.stores.killed_saver import NUM_KEYS, NUM_WEIGHTS
from tests.table.disk.test_kill import killed_after

pytestmark = pytest.mark.dist


@pytest.fixture
def saver(bucket):
    with started("tests.stores.killed_saver", bucket.environment()) as process:
        yield process


def check(directory, last):
    """The newest checkpoint is the last one that was told of, or the next, and whole."""
    checkpoint = find(directory)
    version = checkpoint.step
    assert version in (last, last + 1)
    table = checkpoint.load_tables()["user"]
    expected = torch.full((NUM_KEYS, 8), float(version))
    assert torch.equal(table.lookup(torch.arange(NUM_KEYS)), expected)
    weight = torch.full((NUM_WEIGHTS,), float(version))
    assert torch.equal(checkpoint.read_dense()["weight"], weight)
    assert checkpoint.read_trainer() == {"v": version}
    for prefix in existing_checkpoints(directory):
        assert open_checkpoint(prefix).verify() > 0
    return version


def run_kills(saver, bucket, num_kills):
    directory, numbers, version = f"{bucket.url}/run", random.Random(7), 0
    for _ in range(num_kills):
        last = killed_after(saver, directory, version + 1, numbers.uniform(0, 0.5))
        version = check(directory, last)
    save(Contents(step=version + 1), directory)  # cleans up what killed saves left
    complete = {prefix.rpartition("/")[2] for prefix in existing_checkpoints(directory)}
    names = [name for name in bucket.files("run") if name != "checkpoint"]
    assert {".".join(name.split(".")[:2]) for name in names} == complete
    assert [name for name in names if name.endswith((".saving", ".deleted"))] == []
    assert bucket.system.list_multipart_uploads(bucket.name) == []


def test_a_killed_save_leaves_the_newest_complete_checkpoint(saver, bucket):
    run_kills(saver, bucket, 5)


@pytest.mark.slow
def test_fifty_killed_saves_leave_the_newest_complete_checkpoint(saver, bucket):
    run_kills(saver, bucket, 50)
