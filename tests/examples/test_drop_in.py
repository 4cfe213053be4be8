import re
import subprocess
import sys

import pytest

from tests.meta.tree import ROOT

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def output():
    command = [sys.executable, "examples/01_drop_in.py"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_the_model_learns(output):
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2


def test_ids_that_arrive_get_rows(output):
    rows = [int(count.replace(",", "")) for count in re.findall(r"([\d,]+) rows", output)]
    assert rows[-1] - rows[1] == pytest.approx(1000, abs=10)  # five in each of 200 steps


def test_ids_never_seen_read_as_zeros(output):
    assert "read as zeros in eval mode: True" in output
