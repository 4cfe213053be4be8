import doctest

from monolith import embedding
from tests.docs.pages import blocks, first_cells, page

PAGE = page("docs/disk.md")


def test_snippets_do_what_they_show():
    examples = doctest.DocTestParser().get_doctest(
        "\n".join(blocks(PAGE, "python")), {}, "docs/disk.md", None, 0
    )
    problems = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    results = runner.run(examples, out=problems.append)
    assert results.attempted > 20
    assert results.failed == 0, "".join(problems)


def test_the_table_of_functions_has_every_function():
    cells = [cell.split("(")[0] for cell in first_cells(PAGE, "| function |")]
    words = ("load_table", "save_table", "restore_table")
    assert set(cells) == {name for name in embedding.__all__ if name.startswith(words)}
