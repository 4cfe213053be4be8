import pytest

from tests.docs.pages import run_snippets

NAMES = ["features", "optim", "ragged", "scaling", "train", "trainer"]
NAMES += [
    f"reference/{name}" for name in ("groups", "native_task", "partitioned", "queues", "str_queue")
]


@pytest.mark.parametrize("name", [f"docs/{name}.md" for name in NAMES])
def test_snippets_do_what_they_show(name):
    attempted, problems = run_snippets(name)
    assert attempted > 7
    assert problems == ""
