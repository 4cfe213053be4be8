import re

from monolith.data import operations
from tests.docs.pages import page, run_snippets

PAGE = "docs/samples.md"


def test_snippets_do_what_they_show():
    attempted, problems = run_snippets(PAGE)
    assert attempted > 25
    assert problems == ""


def test_the_table_names_every_operation():
    rows = [line for line in page(PAGE).splitlines() if line.startswith("| ")]
    listed = {name for line in rows for name in re.findall(r"`(\w+)`", line.split("|")[2])}
    helpers = {"Comparison", "Draws", "INVALID_LABEL", "ItemPool"}
    assert set(operations.__all__) - listed == helpers
