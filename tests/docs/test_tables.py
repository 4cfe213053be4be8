import doctest

import pytest

from monolith.embedding import ReferenceTable, Segment, Table, TableConfig
from monolith.embedding.verbs import TableVerbs
from tests.docs.pages import blocks, first_cells, page

PAGE = page("docs/tables.md")


def test_snippets_do_what_they_show():
    examples = doctest.DocTestParser().get_doctest(
        "\n".join(blocks(PAGE, "python")), {}, "docs/tables.md", None, 0
    )
    problems = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    results = runner.run(examples, out=problems.append)
    assert results.attempted > 20
    assert results.failed == 0, "".join(problems)


def test_the_table_of_verbs_has_every_verb():
    public = {name for name in dir(TableVerbs) if callable(getattr(TableVerbs, name))}
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
