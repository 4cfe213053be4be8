"""Trains a ranking model on clicks whose ids never end, beside the same model on hashed ids.

Example: .venv/bin/python examples/demo.py --days 60 --memory 4 1 0.25
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.nn import Linear, Module, ModuleDict, ReLU, Sequential
from torch.nn.functional import binary_cross_entropy_with_logits

# Started as a file, Python looks for modules beside it; `examples` itself lies one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import monolith
from examples.clicks import BATCH, FEATURES, SEED, STEPS_PER_DAY, Clicks
from monolith.table import Expiry
from monolith.table.optimizers import Adagrad

try:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from examples.demo_figure import draw
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    sys.exit(f"[demo] expected {package} to be installed; pip install 'monolith-torch[demo]'")

DAYS, EXPIRY_DAYS = 30, 7
DIM, HIDDEN = 16, 64
TABLE_RATE, DENSE_RATE = 0.2, 0.003  # learning rates of Adagrad and Adam
MEMORY = (1.0, 0.25)  # of hashed tables, as shares of the memory of ours
FIGURE = Path(__file__).resolve().parent.parent / "build" / "demo.png"
SECONDS_PER_DAY = 86_400
START_SECONDS = 1_700_000_000  # time of the first step
ROW_BYTES = 4 * 2 * DIM  # of a hashed row: weights and Adagrad's sums


class Ranker(Module):
    """Pooled features, the dot product of each pair of them, and two layers."""

    def __init__(self, make_bag: Callable[[str], Module]) -> None:
        super().__init__()
        num_pairs = len(FEATURES) * (len(FEATURES) - 1) // 2
        # Made before the bags, so that it starts from equal weights whatever they are.
        self.mlp = Sequential(
            Linear(len(FEATURES) * DIM + num_pairs, HIDDEN), ReLU(), Linear(HIDDEN, 1)
        )
        self.bags = ModuleDict({name: make_bag(name) for name in FEATURES})
        self.first, self.second = torch.triu_indices(len(FEATURES), len(FEATURES), offset=1)

    def forward(self, features: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        pooled = torch.stack([self.bags[name](*features[name]) for name in FEATURES], 1)
        dots = (pooled @ pooled.mT)[:, self.first, self.second]  # (B, num_pairs)
        logits: torch.Tensor = self.mlp(torch.cat([pooled.flatten(1), dots], 1))  # (B, 1)
        return logits.squeeze(1)


class HashedBag(torch.nn.EmbeddingBag):
    """The usual way out: a fixed number of rows, and ids that share them."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(num_rows, DIM, mode="sum", sparse=True)
        torch.nn.init.uniform_(self.weight, -0.05, 0.05)  # as our rows start

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(ids % self.num_embeddings, offsets)


class Ours:
    """The model on `monolith.nn.EmbeddingBag`: a row for each id, until it expires."""

    name = "a row per id"

    def __init__(self) -> None:
        self.now = START_SECONDS
        self.bags: dict[str, monolith.nn.EmbeddingBag] = {}
        self.model = Ranker(self.make_bag)
        dense = torch.optim.Adam(self.model.parameters(), lr=DENSE_RATE)
        self.optimizers = [monolith.optim.Optimizer(self.model, dense=dense)]

    def make_bag(self, name: str) -> Module:
        self.bags[name] = monolith.nn.EmbeddingBag(
            DIM,
            mode="sum",
            name=name,
            optimizer=Adagrad(TABLE_RATE),
            expiry=Expiry(EXPIRY_DAYS),
            clock=lambda: self.now,
        )
        return self.bags[name]

    def end_step(self, step: int) -> None:
        if step % STEPS_PER_DAY == STEPS_PER_DAY - 1:
            for bag in self.bags.values():
                bag.table.evict()
        self.now += SECONDS_PER_DAY // STEPS_PER_DAY

    def num_rows(self) -> int:
        return sum(len(bag.table) for bag in self.bags.values())

    def num_expired(self) -> int:
        return sum(bag.table.stats()["num_evicted"] for bag in self.bags.values())

    def table_bytes(self) -> dict[str, int]:
        return {name: bag.table.memory_report()["total_bytes"] for name, bag in self.bags.items()}


class Hashed:
    """The model on `torch.nn.EmbeddingBag`, with as many rows as fit into a share of the bytes."""

    def __init__(self, share: float, table_bytes: dict[str, int]) -> None:
        self.name = f"hashed, {share:g}x memory"
        self.rows = {name: max(1, int(share * n) // ROW_BYTES) for name, n in table_bytes.items()}
        self.model = Ranker(lambda name: HashedBag(self.rows[name]))
        bags, mlp = self.model.bags.parameters(), self.model.mlp.parameters()
        self.optimizers = [
            torch.optim.Adagrad(bags, lr=TABLE_RATE, initial_accumulator_value=0.1),  # as ours
            torch.optim.Adam(mlp, lr=DENSE_RATE),
        ]

    def end_step(self, step: int) -> None:
        """Nothing: a row that many ids share cannot expire."""

    def num_rows(self) -> int:
        return sum(self.rows.values())

    def num_expired(self) -> int:
        return 0

    def table_bytes(self) -> dict[str, int]:
        return {name: num * ROW_BYTES for name, num in self.rows.items()}


@dataclass
class Run:
    """What happened in one training: a number per step, and the memory at the end."""

    name: str
    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)  # AUC, before the batch was learned
    best_scores: list[float] = field(default_factory=list)  # AUC of the true chances
    num_rows: list[int] = field(default_factory=list)
    num_expired: list[int] = field(default_factory=list)
    seconds: float = 0.0  # of training; making the batches is not counted
    table_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def samples_per_second(self) -> float:
        return len(self.scores) * BATCH / self.seconds


def mean_of_last(values: Sequence[float], num: int) -> float:
    last = values[-num:]
    return sum(last) / len(last)


def auc(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Probability that a click was scored above a non-click."""
    ranks = scores.argsort().argsort().double() + 1
    num_clicks = labels.double().sum()
    num_below = ranks[labels == 1].sum() - num_clicks * (num_clicks + 1) / 2
    return float(num_below / (num_clicks * (len(labels) - num_clicks)))


def train(trainee: Ours | Hashed, steps: int, seed: int, report: Callable[[Run], None]) -> Run:
    """One pass over the stream: each batch is scored first, and learned afterwards."""
    run = Run(trainee.name)
    for step, batch in zip(range(steps), Clicks(seed), strict=False):
        start = time.perf_counter()
        logits = trainee.model(batch.features)
        # The sum, so that a row steps by the clicks of its id, whatever else is in the batch.
        loss = binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")
        for optimizer in trainee.optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in trainee.optimizers:
            optimizer.step()
        trainee.end_step(step)
        run.seconds += time.perf_counter() - start
        run.losses.append(loss.item() / BATCH)
        run.scores.append(auc(logits.detach(), batch.labels))
        run.best_scores.append(auc(batch.chances, batch.labels))
        run.num_rows.append(trainee.num_rows())
        run.num_expired.append(trainee.num_expired())
        report(run)
    run.table_bytes = trainee.table_bytes()
    return run


def status(run: Run) -> str:
    """The last day in short."""
    loss, score = (mean_of_last(values, STEPS_PER_DAY) for values in (run.losses, run.scores))
    return f"loss {loss:.4f}  AUC {score:.4f}  {run.num_rows[-1]:7,} rows"


def watch(trainee: Ours | Hashed, days: int, seed: int) -> Run:
    """Train with a progress bar on a terminal; print a line about some days, or only the last."""
    between = max(1, days // 6) if isinstance(trainee, Ours) else days
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not sys.stdout.isatty(), transient=True) as progress:
        task = progress.add_task(trainee.name, total=days * STEPS_PER_DAY, text="")

        def report(run: Run) -> None:
            progress.update(task, advance=1, text=status(run))
            day, rest = divmod(len(run.scores), STEPS_PER_DAY)
            if rest == 0 and (day % between == 0 or day == days):
                expired, speed = run.num_expired[-1], run.samples_per_second
                print(f"day {day:2}  {status(run)}  {expired:7,} expired {speed:7,.0f} samples/s")

        return train(trainee, days * STEPS_PER_DAY, seed, report)


def summary(runs: Sequence[Run]) -> str:
    """A table of the runs, over the last third of the days."""
    num = max(1, len(runs[0].scores) // 3)
    lines = [f"AUC of the last {num} steps:"]
    for run in runs:
        mib = sum(run.table_bytes.values()) / 2**20
        score = mean_of_last(run.scores, num)
        lines.append(f"  {run.name:22} {score:.4f}   {run.num_rows[-1]:7,} rows  {mib:5.1f} MiB")
    best = mean_of_last(runs[0].best_scores, num)
    lines.append(f"  {'best reachable':22} {best:.4f}   from the true chances of the clicks")
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=DAYS, help=f"to train ({DAYS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of stream and model ({SEED})")
    parser.add_argument(
        "--memory",
        type=float,
        nargs="*",
        default=MEMORY,
        metavar="SHARE",
        help="of hashed tables, as shares of the memory of ours (1 0.25)",
    )
    parser.add_argument("--figure", type=Path, default=FIGURE, help="a PNG (build/demo.png)")
    options = parser.parse_args(arguments)
    if options.days < 1:
        parser.error(f"expected --days of at least 1, got {options.days}")
    if options.seed < 0:
        parser.error(f"expected --seed of at least 0, got {options.seed}")
    for share in options.memory:
        if not 0 < share < float("inf"):
            parser.error(f"expected --memory above 0, got {share:g}")
    try:
        options.figure.parent.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    except OSError as error:
        parser.error(f"expected --figure where a file can be made: {error}")
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    torch.set_num_threads(1)  # a model as small as this one is fastest so
    # Said aloud, or the sparse Adagrad of torch warns.
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    start = time.perf_counter()
    num_samples = options.days * STEPS_PER_DAY * BATCH
    print(f"{options.days} days of clicks, {num_samples:,} samples, new ids in every step.")
    print(f"A row per id, which expires when the id was not seen for {EXPIRY_DAYS} days:")
    torch.manual_seed(options.seed)
    runs = [watch(Ours(), options.days, options.seed)]
    for share in options.memory:
        print(f"The same model with ids hashed into {share:g}x the memory:")
        torch.manual_seed(options.seed)
        runs.append(watch(Hashed(share, runs[0].table_bytes), options.days, options.seed))
    print(summary(runs))
    draw(runs, STEPS_PER_DAY, options.figure)
    print(f"Done in {time.perf_counter() - start:.0f} s. Figure: {options.figure}")
    print("Next: .venv/bin/python examples/01_drop_in.py")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("Stopped before the end; nothing was saved.", file=sys.stderr)
        sys.exit(130)
