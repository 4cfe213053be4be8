from tests.docs.pages import run_snippets


def test_snippets_do_what_they_show():
    num_examples, problems = run_snippets("docs/admission.md")
    assert num_examples > 15
    assert not problems
