import inspect

from monolith import data
from tests.docs.pages import first_cells, page, run_snippets


def test_snippets_of_the_page_run():
    attempted, problems = run_snippets("docs/data.md")
    assert attempted > 20
    assert problems == ""


def test_the_page_lists_every_source():
    listed = set(first_cells(page("docs/data.md"), "| source |"))
    made = {
        name
        for name in data.__all__
        if inspect.isfunction(getattr(data, name))
        and inspect.signature(getattr(data, name)).return_annotation is data.Pipeline
    }
    assert listed == made - {"from_files", "from_records"}


def test_the_page_lists_every_stage():
    cells = ", ".join(first_cells(page("docs/data.md"), "| method |"))
    public = [name for name in vars(data.Pipeline) if not name.startswith("_")]
    methods = {name for name in public if inspect.isfunction(getattr(data.Pipeline, name))}
    assert {name for name in methods if f"{name}(" not in cells} == {
        "describe", "filter_numbered", "resume",
    }  # fmt: skip
