import functools

import pytest

from tests.meta.parity import listed_ids, marked_ids
from tests.meta.tree import ROOT, python_files

PARITY = (ROOT / "docs" / "parity.md").read_text()


@functools.cache
def marked():
    """The ids that tests name."""
    return set().union(*(marked_ids(path.read_text()) for path in python_files(ROOT / "tests")))


@pytest.mark.req("G-T1")
def test_every_listed_id_has_a_test():
    assert listed_ids(PARITY) - marked() == set()


@pytest.mark.req("G-T1")
def test_every_id_that_a_test_names_is_listed():
    assert marked() - listed_ids(PARITY) == set()


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
