from monolith import data
from tests.docs.pages import first_cells, page, run_snippets


def test_snippets_do_what_they_show():
    num_examples, problems = run_snippets("docs/records.md")
    assert num_examples > 15
    assert not problems


def test_the_functions_of_the_table_exist():
    names = first_cells(page("docs/records.md"), "| function |")
    assert len(names) == 4
    assert all(hasattr(data, name) for name in names)
