from tests.docs.pages import run_snippets


def test_snippets_do_what_they_show():
    num_examples, problems = run_snippets("docs/precision.md")
    assert num_examples > 10
    assert not problems
