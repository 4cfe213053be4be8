from monolith import observe
from tests.docs.pages import first_cells, page, run_snippets

PAGE = "docs/metrics.md"


def test_snippets_do_what_they_show():
    attempted, problems = run_snippets(PAGE)
    assert attempted > 20
    assert problems == ""


def test_the_tables_have_all_calls_and_all_sinks():
    calls = {cell.partition("(")[0] for cell in first_cells(page(PAGE), "| call |")}
    assert calls == {name for name in vars(observe.MetricsSink) if not name.startswith("_")}
    sinks = {cell.partition("(")[0] for cell in first_cells(page(PAGE), "| sink |")}
    assert sinks == {name for name in observe.__all__ if name.endswith("Sink")} - {"MetricsSink"}
