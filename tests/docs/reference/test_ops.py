import inspect
import re

from monolith.native_training import ops
from monolith.ops import fids
from tests.docs.pages import first_cells, page, run_snippets

PAGE = "docs/reference/ops.md"
FIDS = [
    name
    for name, value in vars(fids).items()
    if inspect.isfunction(value) and value.__module__ == fids.__name__ and name[0] != "_"
]


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
    assert listed == functions | classes | {f"fids.{name}" for name in FIDS}
