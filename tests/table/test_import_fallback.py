import json
import subprocess
import sys

import pytest

import monolith.table
from monolith.table.reference import ReferenceTable

IMPORT = """
import json, sys, warnings
{prepare}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import monolith.table
    import monolith.table.rows
    from monolith.table import Segment, Table, TableConfig
import torch
row = Table(TableConfig("user", Segment(2))).lookup(torch.tensor([1]))
ours = [w for w in caught if "monolith.table" in str(w.message)]
messages = [(w.category.__name__, str(w.message)) for w in ours]
print(json.dumps({{"class": Table.__name__, "messages": messages, "dim": row.shape[1]}}))
"""


def import_after(prepare):
    """What a fresh interpreter says of the import, after some preparation."""
    command = [sys.executable, "-c", IMPORT.format(prepare=prepare)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return json.loads(result.stdout)


@pytest.mark.dist
def test_without_the_extension_table_is_the_reference_and_says_so_once():
    said = import_after("sys.modules['monolith._native'] = None")
    assert said["class"] == "ReferenceTable"
    assert said["dim"] == 2
    ((category, message),) = said["messages"]
    assert category == "RuntimeWarning"
    start = "[monolith.table] Table is the slow ReferenceTable, without the compiled core: "
    assert message.startswith(start)
    assert "None in sys.modules" in message
    assert message.endswith("reinstall monolith-torch, or run `make build` in a checkout")


@pytest.mark.dist
def test_with_the_extension_table_is_native_and_nothing_is_said():
    said = import_after("")
    assert said == {"class": "Table", "messages": [], "dim": 2}
    assert monolith.table.Table is not ReferenceTable


def test_all_is_sorted_and_complete():
    names = monolith.table.__all__
    assert names == sorted(names)
    assert all(hasattr(monolith.table, name) for name in names)


@pytest.mark.dist
def test_an_error_of_our_own_modules_is_not_hidden():
    prepare = "import sys; sys.modules['monolith.table.native'] = None"
    command = [sys.executable, "-c", IMPORT.format(prepare=prepare)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode != 0
    assert "ModuleNotFoundError: import of monolith.table.native halted" in result.stderr
