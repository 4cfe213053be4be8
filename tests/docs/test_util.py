import ast

from monolith.util.layered_settings import SETTING_PREFIX
from tests.docs.pages import first_cells, page, run_snippets
from tests.meta.tree import SRC

PAGE = "docs/util.md"


def test_snippets_do_what_they_show():
    attempted, problems = run_snippets(PAGE)
    assert attempted > 8
    assert problems == ""


def test_the_table_has_the_variables_that_are_read():
    constants = ast.walk(ast.parse((SRC / "environment.py").read_text()))
    texts = {str(node.value) for node in constants if isinstance(node, ast.Constant)}
    read = {text for text in texts if text.isupper()}
    assert set(first_cells(page(PAGE), "| variable |")) == {*read, f"{SETTING_PREFIX}<KEY>"}
