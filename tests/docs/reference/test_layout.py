from monolith.native_training import ops
from tests.docs.pages import page, run_snippets


def test_snippets_do_what_they_show():
    num_examples, problems = run_snippets("docs/reference/layout.md")
    assert num_examples > 10
    assert not problems


def test_the_smaller_ops_exist():
    table = page("docs/reference/layout.md").partition("## Smaller ops")[2].partition("Speed")[0]
    names = table.split("`")[1::2]
    assert len(names) > 15
    assert set(names) <= set(ops.__all__)
