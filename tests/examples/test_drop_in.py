import re
import subprocess
import sys

import pytest

from tests.meta.tree import ROOT

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def lines():
    command = [sys.executable, str(ROOT / "examples" / "01_drop_in.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert result.stderr == ""
    return result.stdout.splitlines()


def test_the_model_learns(lines):
    losses = [float(re.search(r"loss ([\d.]+)", line)[1]) for line in lines]
    assert losses[-1] < losses[0] < 0.2


def test_every_person_gets_a_row(lines):
    rows = [int(line.split()[-1]) for line in lines]
    assert rows == sorted(rows)
    assert rows[-1] > 1900
