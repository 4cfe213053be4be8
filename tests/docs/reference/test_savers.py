import inspect

from monolith.native_training.saver import PartialRecoverySaver
from tests.docs.pages import first_cells, page, run_snippets


def test_snippets_of_the_page_run():
    attempted, problems = run_snippets("docs/reference/savers.md")
    assert attempted > 15
    assert problems == ""


def test_the_page_names_every_option_of_the_saver():
    cells = first_cells(page("docs/reference/savers.md"), "| option |")
    named = {name for cell in cells for name in cell.replace("`", "").split(", ")}
    assert named == set(inspect.signature(PartialRecoverySaver).parameters)
