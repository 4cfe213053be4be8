import doctest

from monolith.nn.options import TableOptions
from tests.docs.pages import blocks, page

PAGE = page("docs/drop_in.md")


def test_snippets_do_what_they_show():
    source = "\n".join(blocks(PAGE, "python"))
    examples = doctest.DocTestParser().get_doctest(source, {}, "docs/drop_in.md", None, 0)
    problems = []
    results = doctest.DocTestRunner().run(examples, out=problems.append)
    assert results.attempted > 5
    assert results.failed == 0, "".join(problems)


def test_every_option_of_the_table_is_named():
    assert [name for name in TableOptions.__annotations__ if f"`{name}`" not in PAGE] == []
