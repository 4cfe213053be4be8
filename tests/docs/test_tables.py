import pytest

from monolith.table import Segment, Table, TableConfig
from monolith.table.base import BaseTable
from monolith.table.reference import ReferenceTable
from tests.docs.pages import first_cells, page, run_snippets

PAGE = page("docs/tables.md")


def test_snippets_do_what_they_show():
    num_examples, problems = run_snippets("docs/tables.md")
    assert num_examples > 20
    assert not problems


def test_the_table_of_verbs_has_every_verb():
    public = {name for name in dir(BaseTable) if callable(getattr(BaseTable, name))}
    verbs = {name for name in public if not name.startswith("_")} | {"len"}
    assert set(first_cells(PAGE, "| verb |")) == verbs


@pytest.mark.parametrize("verb", ["stats", "memory_report"])
def test_the_names_of_facts_are_those_of_the_code(verb):
    table, reference = (make(TableConfig("user", Segment(1))) for make in (Table, ReferenceTable))
    names = first_cells(PAGE.split(f"\n`{verb}()`")[1], "| name |")
    assert set(names) == set(getattr(table, verb)())
    common = getattr(reference, verb)()
    assert set(names[: len(common)]) == set(common)


def test_the_policies_for_non_finite_gradients_are_those_of_the_code():
    policies = first_cells(PAGE, "| `non_finite` |")
    assert [policy.split('"')[1] for policy in policies] == ["refuse", "skip", "clip"]
    for policy in ("refuse", "skip"):
        TableConfig("user", Segment(1), non_finite=policy)
    TableConfig("user", Segment(1), non_finite="clip", clip_value=1.0)
