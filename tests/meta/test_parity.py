import functools

import pytest

from tests.meta.parity import (
    is_there,
    listed_names,
    listed_paths,
    marked_ids,
    reference_modules,
)
from tests.meta.tree import ROOT, python_files
from tools.acceptance import listed_ids, read_page, render

PARITY = (ROOT / "docs" / "parity.md").read_text()
MODULES, _, STATES = PARITY.partition("\n## Acceptance ids\n")


@functools.cache
def marked():
    """The ids that tests name."""
    return set().union(*(marked_ids(path.read_text()) for path in python_files(ROOT / "tests")))


@pytest.mark.req("G-T1")
def test_every_id_of_a_module_has_a_test():
    assert listed_ids(MODULES) - marked() == set()


@pytest.mark.req("G-T1")
def test_every_id_that_a_test_names_is_listed_with_its_module():
    assert marked() - listed_ids(MODULES) == set()


@pytest.mark.req("G-T3")
def test_an_id_is_listed_as_not_built_if_and_only_if_no_test_names_it():
    """Fix: run the tests of the id, then `python tools/acceptance.py --write`."""
    states = read_page()
    assert {i for i in states if states[i].state != "not built"} == marked()


@pytest.mark.req("G-T3")
def test_the_table_of_all_ids_is_as_the_tool_writes_it():
    assert f"<!-- begin table -->\n{render(read_page())}<!-- end table -->\n" in STATES
    assert len(read_page()) >= 326


def test_a_range_stands_for_each_of_its_ids():
    text = "| MN-PATH-T1..T3 | G-T1, NT-STRQ-T10 |"
    assert listed_ids(text) == {"MN-PATH-T1", "MN-PATH-T2", "MN-PATH-T3", "G-T1", "NT-STRQ-T10"}


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.req('G-T1', 'G-T2')\ndef test(): ...",
        "pytestmark = [pytest.mark.req('G-T1', 'G-T2')]",
        "pytest.param(1, marks=[pytest.mark.req('G-T1'), mark.req('G-T2')])",
    ],
)
def test_a_mark_is_found_wherever_it_stands(source):
    assert marked_ids(source) == {"G-T1", "G-T2"}


def test_every_path_of_the_page_exists():
    assert [path for path in listed_paths(PARITY) if not (ROOT / path).exists()] == []


def test_every_dotted_name_of_the_page_exists():
    names = listed_names(PARITY)
    assert len(names) > 100
    assert [name for name in sorted(names) if not is_there(name)] == []


def test_every_module_that_is_listed_as_built_is_imported_by_its_path():
    built = reference_modules(PARITY.partition("\n## Import paths\n")[0])
    assert len(built) > 30
    assert {name for name in built if not is_there(name)} == set()


def test_names_after_a_module_are_its_own():
    text = "| `a.py` | `monolith.ops`: `fids`, `Ragged`; `monolith.data`, `x` |"
    assert listed_names(text) == {
        "monolith.ops", "monolith.ops.fids", "monolith.ops.Ragged", "monolith.data",
    }  # fmt: skip
