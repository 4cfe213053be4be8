import doctest

from tests.docs.pages import blocks, page


def test_snippets_do_what_they_show():
    name = "docs/shards.md"
    text = "\n".join(blocks(page(name), "python"))
    problems = []
    results = doctest.DocTestRunner().run(
        doctest.DocTestParser().get_doctest(text, {}, name, None, 0), out=problems.append
    )
    assert results.attempted > 10
    assert results.failed == 0, "".join(problems)
