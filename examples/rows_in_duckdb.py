"""Ask a checkpoint questions in SQL: DuckDB joins its rows with what is known of the items.

Trains a small task on made-up clicks, writes the rows of its checkpoint as Parquet, and prints the
items nearest to one item by their titles, and the rows of each slot.

Example: .venv/bin/python examples/rows_in_duckdb.py
"""

import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import monolith as ml
from monolith.checkpoint import load
from monolith.checkpoint.vectors import saved_tables, write_row_files

USERS, ITEMS, AUTHORS, STEPS, BATCH = 200, 60, 20, 400, 256
TOPICS = ("books", "games", "music", "sport")
USER, ITEM, AUTHOR = 1, 2, 3  # slots: the upper bits of a key

NEAREST = """
    WITH vectors AS (
        SELECT items.*, rows."weight/0" AS vector FROM rows JOIN items ON rows.key = items.key
    )
    SELECT near.title, near.topic, list_cosine_similarity(near.vector, one.vector) AS similarity
    FROM vectors AS one, vectors AS near
    WHERE one.title = 'item 7' AND near.title <> one.title
    ORDER BY similarity DESC
    LIMIT 5
"""
SLOTS = """
    SELECT key >> 48 AS slot, count(*) AS rows, avg(list_dot_product("weight/0", "weight/0")) ** 0.5
        AS length, to_timestamp(max(time)) AS newest
    FROM rows
    GROUP BY slot
    ORDER BY slot
"""


class Clicks(ml.Task):
    """Users click items of their topic; users, items and authors share a table."""

    features = (
        ml.Feature(
            "user",
            dim=8,
            optimizer=ml.Adagrad(0.1, initial_accumulator_value=1e-4),
            initializer=ml.table.Uniform(-0.3, 0.3),
        ),
        ml.Feature("item", shares="user"),
        ml.Feature("author", shares="user"),
    )

    def source(self, mode: ml.Mode) -> ml.data.Pipeline:
        random = torch.Generator().manual_seed(0)
        users = torch.randint(USERS, (STEPS * BATCH,), generator=random)
        items = torch.randint(ITEMS, (STEPS * BATCH,), generator=random)
        samples = {
            "user": users | USER << 48,
            "item": items | ITEM << 48,
            "author": items % AUTHORS | AUTHOR << 48,
            "label": (users % len(TOPICS) == items % len(TOPICS)).float(),
        }
        table = pa.table({name: column.numpy() for name, column in samples.items()})
        return ml.data.arrow_table(table, label="label").batch(BATCH)

    def build(self) -> torch.nn.Module:
        return torch.nn.Identity()

    def loss(
        self, model: torch.nn.Module, inputs: ml.Inputs, batch: ml.data.Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        pooled = inputs.pooled
        logit = (pooled["user"] * (pooled["item"] + pooled["author"])).sum(1) - 1
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, batch.label)
        return loss, logit.sigmoid()


def write_items(path: Path) -> None:
    """Write what a catalogue knows of the items."""
    numbers = range(ITEMS)
    columns = {
        "key": [number | ITEM << 48 for number in numbers],
        "title": [f"item {number}" for number in numbers],
        "topic": [TOPICS[number % len(TOPICS)] for number in numbers],
    }
    pq.write_table(pa.table(columns), path)


def main() -> None:
    """Train, export, ask."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ml.Trainer(Clicks(), ml.TrainSettings(checkpoint_dir=f"{name}/run")) as trainer:
            trainer.fit()
        write_row_files(saved_tables(load(f"{name}/run")), folder / "rows")
        write_items(folder / "items.parquet")
        with duckdb.connect() as database:
            database.execute(f"CREATE VIEW rows AS FROM '{folder}/rows/user.parquet'")
            database.execute(f"CREATE VIEW items AS FROM '{folder}/items.parquet'")
            for title, query in (("nearest to 'item 7', a sport item", NEAREST), ("slots", SLOTS)):
                print(title)
                print(database.sql(query))


if __name__ == "__main__":
    main()
