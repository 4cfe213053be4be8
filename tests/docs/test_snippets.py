import doctest

import pytest

from tests.docs.pages import blocks, page


@pytest.mark.parametrize("name", ["docs/groups.md", "docs/partitioned.md", "docs/ragged.md"])
def test_snippets_do_what_they_show(name):
    text = "\n".join(blocks(page(name), "python"))
    problems = []
    results = doctest.DocTestRunner().run(
        doctest.DocTestParser().get_doctest(text, {}, name, None, 0), out=problems.append
    )
    assert results.attempted > 7
    assert results.failed == 0, "".join(problems)
