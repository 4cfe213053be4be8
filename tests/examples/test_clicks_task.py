import json
import subprocess
import sys

import pytest

from tests.meta.tree import ROOT

pytestmark = pytest.mark.thorough

TASK = "examples/clicks_task.py"


@pytest.fixture(scope="module")
def lines():
    command = [sys.executable, "-m", "monolith.cli.main", "train", TASK, "--json"]
    command += ["--set", "days=9", "--set", "train.evict_every=12", "--set", "train.threads=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_model_learns_to_rank(lines):
    assert lines[-1]["figures"]["metrics"]["auc"] > 0.7


def test_rows_of_ids_that_left_expire(lines):
    assert lines[-1]["figures"]["num_evicted"] > 10_000


def test_every_day_has_its_steps(lines):
    assert lines[-1]["num_steps"] == 9 * 12
