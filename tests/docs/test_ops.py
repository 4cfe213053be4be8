import inspect
import re

from monolith import ops
from tests.docs.pages import first_cells, page, run_snippets

PAGE = "docs/ops.md"


def test_snippets_do_what_they_show():
    attempted, problems = run_snippets(PAGE)
    assert attempted > 8
    assert problems == ""


def test_the_tables_name_every_function():
    heads = ("| op |", "| op of ids and rows |")
    cells = " ".join(cell for head in heads for cell in first_cells(page(PAGE), head))
    listed = set(re.findall(r"([\w.]+)\(", cells))
    classes = {"NestedTensors", "StaticReshapeNBuilder"}  # that are called like functions
    functions = {name for name in ops.__all__ if inspect.isfunction(getattr(ops, name))}
    assert listed == functions | classes | {f"fids.{name}" for name in ops.fids.__all__}
