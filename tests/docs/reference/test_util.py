import fsspec
import pytest

from tests.docs.pages import run_snippets


@pytest.fixture(autouse=True)
def memory():
    """Leaves no files in `memory://`."""
    yield
    fsspec.filesystem("memory").store.clear()


def test_snippets_do_what_they_show():
    attempted, problems = run_snippets("docs/reference/util.md")
    assert attempted > 20
    assert problems == ""
