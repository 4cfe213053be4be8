import re

from monolith.data.stream.join import JoinSettings, OnlineJoiner
from tests.docs.pages import first_rows, page, run_snippets

PAGE = "docs/joining.md"


def test_snippets_do_what_they_show():
    attempted, problems = run_snippets(PAGE)
    assert problems == ""
    assert attempted > 20


def test_the_table_names_every_count():
    names = {
        name for row in first_rows(page(PAGE), "| count") for name in re.findall(r"`(\w+)`", row[0])
    }
    counts = OnlineJoiner(JoinSettings("key", 10, {"click": [1]})).counts
    assert names | {"impressions", "actions"} == set(counts)
