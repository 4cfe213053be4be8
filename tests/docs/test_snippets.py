import pytest

from tests.docs.pages import run_snippets

NAMES = ["features", "groups", "optim", "partitioned", "ragged", "str_queue", "train"]
NAMES += ["native_task", "trainer"]


@pytest.mark.parametrize("name", [f"docs/{name}.md" for name in NAMES])
def test_snippets_do_what_they_show(name):
    attempted, problems = run_snippets(name)
    assert attempted > 7
    assert problems == ""
