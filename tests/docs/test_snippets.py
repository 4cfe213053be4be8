import pytest

from tests.docs.pages import run_snippets


@pytest.mark.parametrize(
    "name", ["docs/groups.md", "docs/optim.md", "docs/partitioned.md", "docs/ragged.md"]
)
def test_snippets_do_what_they_show(name):
    attempted, problems = run_snippets(name)
    assert attempted > 7
    assert problems == ""
