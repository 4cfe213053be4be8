from tests.docs.pages import run_snippets


def test_snippets_of_the_page_run():
    attempted, problems = run_snippets("docs/reference/sync.md")
    assert attempted > 25
    assert problems == ""
