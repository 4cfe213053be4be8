"""Trains a click model on ids that never stop arriving: two tables and plain torch.

Example: .venv/bin/python examples/demo.py --steps 1000
"""

import argparse
import sys
import time

import torch
from torch.nn import Linear, ReLU, Sequential
from torch.nn.functional import binary_cross_entropy_with_logits

from monolith.embedding import Adagrad, Segment, Table, TableConfig

DIM, BATCH = 16, 8192
ALIVE, NEW = 5000, 50  # users (and items) that may turn up in a step; of them new in each step
FIXED_ROWS = 8192  # what a vocabulary chosen beforehand would have
START_SECONDS = 1_700_000_000  # time of the first step


class Clicks:
    """A stream of (user, item, clicked). What decides a click is hidden; only ids are seen."""

    def __init__(self, steps: int) -> None:
        self.random = torch.Generator().manual_seed(0)
        shape = (2, ALIVE + NEW * steps)
        # How often a user clicks and an item is clicked, and what both are about.
        self.levels, self.topics = torch.randn((2, *shape), generator=self.random)
        self.ids = torch.randint(-(1 << 63), (1 << 63) - 1, (4, shape[1]), generator=self.random)

    def batch(self, step: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Two ids for each user and item, int64 (BATCH, 2), and the clicks (BATCH,)."""
        first = NEW * step
        user, item = torch.randint(first, first + ALIVE, (2, BATCH), generator=self.random)
        logits = self.levels[0, user] + self.levels[1, item]
        logits += 2 * self.topics[0, user] * self.topics[1, item]
        ids = {
            "user": torch.stack([self.ids[0, user], self.ids[1, user % 50]], 1),  # with the city
            "item": torch.stack([self.ids[2, item], self.ids[3, item // 10]], 1),  # and the author
        }
        return ids, torch.bernoulli(logits.sigmoid(), generator=self.random)


def auc(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Probability that a click was scored above a non-click."""
    ranks = scores.argsort().argsort().double() + 1
    num_clicks = labels.double().sum()
    num_below = ranks[labels == 1].sum() - num_clicks * (num_clicks + 1) / 2
    return float(num_below / (num_clicks * (len(labels) - num_clicks)))


def train(steps: int, fixed_rows: int | None = None) -> tuple[list[Table], float]:
    """The tables, and the AUC of the last steps. `fixed_rows`: ids are hashed into so many."""
    torch.manual_seed(0)
    tables = [Table(TableConfig(name, Segment(DIM, Adagrad(0.2)))) for name in ("user", "item")]
    clicks, scores = Clicks(steps), []
    model = Sequential(Linear(3 * DIM, 32), ReLU(), Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for step in range(steps):
        ids, labels = clicks.batch(step)
        keys = [ids[table.name].flatten() for table in tables]  # (2 * BATCH,) each
        keys = [k % fixed_rows if fixed_rows else k for k in keys]
        # A lookup stores nothing: a key never seen before reads as the row that it would get.
        rows = [table.lookup(k).requires_grad_() for table, k in zip(tables, keys, strict=True)]
        user, item = (leaf.view(BATCH, 2, DIM).sum(1) for leaf in rows)  # pooled, (BATCH, DIM)
        logits = model(torch.cat([user, item, user * item], 1)).squeeze(1)
        loss = binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for table, k, leaf in zip(tables, keys, rows, strict=True):
            # New keys get rows; gradients of equal keys are summed; each key makes one step.
            assert leaf.grad is not None
            table.apply_gradients(k, leaf.grad, now=START_SECONDS + step)
        scores.append(auc(logits.detach(), labels))  # scored before anything was learned from them
        if not fixed_rows and (step % max(1, steps // 8) == 0 or step == steps - 1):
            mib = sum(table.memory_report()["total_bytes"] for table in tables) / 2**20
            print(
                f"step {step:4}  loss {loss.item() / BATCH:.4f}  AUC {scores[-1]:.4f}  rows "
                f"{len(tables[0]):6,} (user) {len(tables[1]):6,} (item)  {mib:4.1f} MiB"
            )
    last = scores[-max(1, steps // 10) :]
    return tables, sum(last) / len(last)


def copied(table: Table) -> Table:
    """A fresh table with the rows that the other one exports, chunk by chunk; compares both."""
    copy = Table(table.config)
    for chunk in table.export(chunk_rows=4096):
        copy.import_rows(chunk)
    for old, new in zip(table.export(), copy.export(), strict=True):
        assert torch.equal(old.keys, new.keys)
        assert torch.equal(old.times, new.times)
        assert all(torch.equal(old.columns[name], new.columns[name]) for name in old.columns)
    return copy


def interrupted() -> int:
    """Say that the run was stopped by hand; the exit code that shells use for it."""
    print("Stopped before the end; nothing was saved.", file=sys.stderr)
    return 130


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="batches to train on (300)")
    steps = parser.parse_args().steps
    if steps < 1:
        parser.error(f"expected --steps of at least 1, got {steps}")
    torch.set_num_threads(1)  # a model as small as this one is fastest so
    start = time.perf_counter()
    print(f"Training on {steps} batches of {BATCH:,}; each brings {NEW} new users and items.")
    tables, score = train(steps)
    print(f"The same again, with ids hashed into a fixed {FIXED_ROWS:,} rows per table.")
    _, fixed_score = train(steps, FIXED_ROWS)
    print(f"AUC at the end: {score:.4f} with a row per id, {fixed_score:.4f} with fixed rows.")
    num_rows = sum(len(copied(table)) for table in tables)
    print(f"Exported {num_rows:,} rows and imported them into fresh tables: all equal.")
    print(f"Done in {time.perf_counter() - start:.0f} s; docs/tables.md explains the calls.")
    print("Next: .venv/bin/python examples/demo.py --steps 1000, or: make bench")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(interrupted())
