"""Mutated saves: the reader refuses them by name or loads them, and never does worse."""

import shutil

import pytest
import torch

from monolith.table.disk import load_tables
from tests.meta.tree import ROOT
from tests.table.disk.fuzzing import fuzz

pytestmark = pytest.mark.thorough

CORPUS = sorted((ROOT / "tests" / "golden").glob("tables-v*"))


def test_mutated_saves_are_refused_or_loaded(tmp_path):
    num_refused, num_loaded = fuzz(CORPUS, tmp_path, num_rounds=200)
    assert num_refused > 100
    assert num_loaded > 5


@pytest.mark.slow
def test_mutated_saves_for_ten_minutes(tmp_path):
    num_refused, num_loaded = fuzz(CORPUS, tmp_path, seconds=600, first_seed=1_000_000)
    assert num_refused > num_loaded > 100


@pytest.mark.parametrize("path", CORPUS, ids=[path.name for path in CORPUS])
def test_saves_of_every_version_stay_readable(tmp_path, path):
    shutil.copytree(path, tmp_path / "save")  # a checkout may be read-only
    tables = load_tables(tmp_path / "save")
    assert list(tables) == ["user", "item", "served"]
    user, item, served = tables.values()
    keys = torch.tensor([-(1 << 63), -1, 0, 7, (1 << 63) - 1])
    expected = torch.arange(15).reshape(5, 3) / 4
    assert torch.equal(user.lookup(keys), expected)
    assert user.lookup_entry(keys).rows.times.tolist() == [100, 101, 102, 103, 104]
    assert user.lookup_entry(keys).rows.columns["state/1/norm"].tolist() == [[0.5]] * 5
    assert (user.num_update_calls, user.latest_time) == (6, 200)
    assert user.export_candidates()["count"].tolist() == [3]
    assert item.lookup(keys)[:, 0].tolist() == [0.0, 0.0, 0.0, 1.5, 0.0]
    assert item.stats()["num_candidates"] == 2
    assert served.lookup(keys[:2]).tolist() == [[0.5, -0.5, 0.25], [-0.5, 0.5, -0.25]]
