import re

from monolith import ops
from tests.docs.pages import first_cells, page, run_snippets

PAGE = "docs/ops.md"


def test_snippets_do_what_they_show():
    attempted, problems = run_snippets(PAGE)
    assert attempted > 8
    assert problems == ""


def test_the_table_names_every_function():
    cells = " ".join(first_cells(page(PAGE), "| op "))
    listed = set(re.findall(r"([\w.]+)\(", cells))
    data_types = {"NestedRagged", "Ragged", "fids"}
    functions = {*ops.__all__, *(f"fids.{name}" for name in ops.fids.__all__)} - data_types
    assert listed == functions
