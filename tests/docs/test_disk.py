from monolith import table as embedding
from tests.docs.pages import first_cells, page, run_snippets

PAGE = page("docs/disk.md")


def test_snippets_do_what_they_show():
    num_examples, problems = run_snippets("docs/disk.md")
    assert num_examples > 20
    assert not problems


def test_the_table_of_functions_has_every_function():
    cells = [cell.split("(")[0] for cell in first_cells(PAGE, "| function |")]
    words = ("load_table", "save_table", "restore_table")
    assert set(cells) == {name for name in embedding.__all__ if name.startswith(words)}
