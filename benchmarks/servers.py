"""`Trainer(servers=2)` next to `Trainer` with tables of its own, on a model with 26 features.

`servers_click` trains the click model of `click_model.py`; `servers_tables` has no dense part, so
that reading and stepping the tables is nearly all of a step. Servers are in this process. The
losses of the first steps are those of tables in the trainer, bit for bit.
"""

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import monolith as ml
from benchmarks.click_model import DIM, NUM_DENSE, NUM_FEATURES, Sizes, batches
from benchmarks.harness import BenchmarkError, Sample, say, timed
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage
from monolith.ops import Ragged

_SERVERS = 2
_ROWS = 200_000  # ids of each feature
_QUICK_ROWS = 2_000
Scores = tuple[torch.Tensor, torch.Tensor]
_WIDTH = NUM_FEATURES * DIM + NUM_DENSE


class Tables(ml.Task):
    """26 features, and a loss that needs next to nothing."""

    features = [
        ml.Feature(f"feature_{i}", dim=DIM, optimizer=ml.Adagrad(0.05)) for i in range(NUM_FEATURES)
    ]
    dense = [f"dense_{i}" for i in range(NUM_DENSE)]

    def source(self, mode: object) -> list[ml.data.Batch]:
        return []

    def build(self) -> nn.Module:
        return nn.Identity()

    def loss(self, model: nn.Module, inputs: ml.train.Inputs, batch: ml.data.Batch) -> Scores:
        score = inputs.pooled.joined.mean(1)
        return (score - batch.label).square().mean(), score.detach().sigmoid()


class Click(Tables):
    """The click model."""

    def build(self) -> nn.Module:
        layers = (nn.Linear(_WIDTH, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        return nn.Sequential(*layers, nn.Linear(64, 1))

    def loss(self, model: nn.Module, inputs: ml.train.Inputs, batch: ml.data.Batch) -> Scores:
        score = model(torch.cat([inputs.pooled.joined, inputs.dense], 1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(score, batch.label)
        return loss, score.detach().sigmoid()


def batches_of(sizes: Sizes) -> list[ml.data.Batch]:
    """Return batches as a source would give them."""
    prepared = []
    for batch in batches(sizes):
        splits = torch.arange(len(batch.labels) + 1)
        ids, dense = torch.from_numpy(batch.ids.T.copy()), torch.from_numpy(batch.dense.T.copy())
        features = {f"feature_{i}": Ragged(ids[i], splits) for i in range(NUM_FEATURES)}
        numbers = {f"dense_{i}": dense[i] for i in range(NUM_DENSE)}
        prepared.append(ml.data.Batch(features, numbers, {"label": torch.from_numpy(batch.labels)}))
    return prepared


class Fit:
    """`Trainer.fit` on batches that are ready."""

    def __init__(self, task: ml.Task, data: list[ml.data.Batch], servers: int) -> None:
        settings = ml.TrainSettings(log_every=0)
        self.trainer = ml.Trainer(task, settings, servers=servers)
        self._batches = itertools.cycle(data)

    def run(self, num_steps: int) -> float:
        """Return the mean loss of some steps."""
        return self.trainer.fit(itertools.islice(self._batches, num_steps)).figures.loss


def sample(run: Callable[[int], float], num_steps: int, batch: int) -> Sample:
    """Measure thousands of samples per second."""
    with timed() as window:
        run(num_steps)
    return Sample(num_steps * batch / window.seconds / 1e3, window.others_cores)


def measure(name: str, task: ml.Task, sizes: Sizes, options: Options) -> None:
    """Print the line of a model."""
    data = batches_of(sizes)
    fits = {"servers": Fit(task, data, _SERVERS), "trainer": Fit(task, data, 0)}
    ours, theirs = ([fit.run(1) for _ in range(4)] for fit in fits.values())
    if ours != theirs:
        raise BenchmarkError(f"[{name}] expected the losses {theirs}, got {ours}")
    takes = {}
    for name_of, fit in fits.items():
        fit.run(len(data))  # every id has a row
        rate = sample(fit.run, 4, sizes.batch).value
        num_steps = max(8, round(options.rules.sample_seconds * rate * 1e3 / sizes.batch))
        takes[name_of] = functools.partial(sample, fit.run, num_steps, sizes.batch)
    facts: dict[str, Any] = {"rows": sizes.rows, "batch": sizes.batch, "threads": sizes.threads}
    facts |= {"features": NUM_FEATURES, "dim": DIM, "servers": _SERVERS, "distribution": "zipf"}
    Question(name, "k samples/s", facts, options.rules).measure(takes)
    for fit in fits.values():
        fit.trainer.close()


def run(options: Options) -> None:
    """Print a line for each model."""
    sizes = Sizes(_QUICK_ROWS if options.is_quick else _ROWS)
    torch.set_num_threads(sizes.threads)
    say(f"[servers] {NUM_FEATURES} features, batch {sizes.batch}, {_SERVERS} servers")
    measure("servers_tables", Tables(), sizes, options)
    measure("servers_click", Click(), sizes, options)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
