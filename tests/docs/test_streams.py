from monolith.data.stream.message_formats import check_format
from tests.docs.pages import first_cells, page, run_snippets


def test_snippets_of_the_page_run():
    attempted, problems = run_snippets("docs/streams.md")
    assert problems == ""
    assert attempted > 12


def test_the_page_names_formats_that_are_there():
    cells = ", ".join(first_cells(page("docs/streams.md"), "| format |"))
    for name in ("json", "arrow", "example", "instance", "tf_example", "example_batch"):
        assert f'"{name}"' in cells
        check_format(name, {})
