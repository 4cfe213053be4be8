"""States of an older version, which tests/golden/data-v1 has with what follows them."""

import json
from pathlib import Path

import fsspec
import numpy as np
import pytest

from monolith import data
from tests.data.samples import users

GOLDEN = Path(__file__).parents[1] / "golden" / "data-v1" / "states.json"
NAMES = [
    "cached", "filtered", "flow", "merged", "plain", "shard_of_files", "shard_of_samples",
    "shuffled",
]  # fmt: skip


def pipelines():
    """Pipelines over three files of 40 samples, in memory: their paths are the same everywhere."""
    system = fsspec.filesystem("memory")
    for i in range(3):
        text = "".join(f"{i * 40 + j},{j % 3}\n" for j in range(40))
        system.pipe(f"/old-states/day-{i}.csv", f"user,device\n{text}".encode())
    source = data.csv("memory://old-states")
    flows = source.split("device", {"a": 0, "b": 1, "c": 2})
    is_even = lambda block: np.asarray(block["user"]) % 2 == 0  # noqa: E731
    is_even.__qualname__ = "is_even"
    return {
        "cached": source.cache().repeat(2).batch(9),
        "filtered": source.filter(is_even).shuffle(11).batch(4, drop_remainder=True),
        "flow": flows["b"].shuffle(9).batch(4),
        "merged": flows["a"].merge(flows["c"]).shuffle(16).batch(6),
        "plain": source.batch(7),
        "shard_of_files": source.shuffle_files(2).shard(1, 2).shuffle(25).batch(3),
        "shard_of_samples": source.shard(2, 5).repeat(2).batch(4),
        "shuffled": source.shuffle_files(1).interleave(2).shuffle(50, seed=4).repeat(2).batch(8),
    }


@pytest.mark.parametrize("name", NAMES)
def test_an_old_state_is_resumed(name):
    source = pipelines()[name]
    for golden in json.loads(GOLDEN.read_text())[name]:
        assert users(source.resume(golden["state"])) == golden["rest"]
