import re
import subprocess
import sys

import pytest

from tests.meta.tree import ROOT

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def output():
    command = [sys.executable, "examples/rows_in_duckdb.py"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_the_nearest_items_have_the_topic_of_the_item(output):
    items = re.findall(r"item (\d+) +│ (\w+) +│", output)
    assert len(items) == 5
    assert {topic for _, topic in items} == {"sport"}
    assert {int(number) % 4 for number, _ in items} == {7 % 4}


def test_the_rows_of_each_slot_are_counted(output):
    assert re.findall(r"│ +(\d) │ +(\d+) │", output) == [("1", "200"), ("2", "60"), ("3", "20")]
