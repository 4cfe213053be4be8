import re

import pyarrow as pa

from monolith import data, observe
from monolith.train import Trainer, TrainSettings
from tests.docs.pages import first_cells, page, run_snippets
from tests.train.tasks import Clicks

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


def test_the_table_of_names_is_what_a_run_writes(tmp_path):
    samples = {"user": range(16), "item": range(16), "hour": [0.5] * 16, "click": [0.0, 1.0] * 8}
    batches = data.arrow_table(pa.table(samples)).batch(8)
    saves = {"save_every": 1, "save_rate": 1e-6, "busy_save": "wait"}
    rules = ("loss>1e9",)
    settings = TrainSettings(eval_every=1, checkpoint_dir=str(tmp_path), alerts=rules, **saves)
    sink = observe.MemorySink()
    with Trainer(Clicks(batches, batches), settings, metrics=sink) as trainer:
        trainer.fit()
    table = page(PAGE).partition("## What a run writes")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert {name for row in rows for name in re.findall("`([^`]+)`", row)} == sink.names
