"""What `Trainer.fit` costs beside a loop written by hand, with the same tables and model.

The DLRM of examples/dlrm.py at batch 4,096; and 1,000 features at batch 1 without a dense part,
where next to nothing is computed and what is left is the way through Python. Batches are ready in
memory. The loop by hand keeps neither figures nor watches its loss.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.harness import BenchmarkError, Sample, say, timed
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage
from benchmarks.workload import zipf_cdf
from examples.dlrm import NUM_DENSE, NUM_FEATURES, Ranker
from monolith.data import Batch
from monolith.embedding import Adagrad
from monolith.nn import Feature, Features
from monolith.ops import Ragged
from monolith.optim import Optimizer
from monolith.train import Task, Trainer, TrainSettings
from monolith.train.inputs import Inputs, dense_matrix

_BATCH, _QUICK_BATCH = 4096, 256
_ROWS, _QUICK_ROWS = 1_000_000, 10_000
_NUM_SMALL = 1000
_NUM_BATCHES = 8
_DLRM_SECONDS = 1.5  # a step takes tens of milliseconds


class Small(Task):
    """Many features, one sample, no dense part."""

    features = tuple(
        Feature(f"feature_{i}", dim=8, optimizer=Adagrad(0.05)) for i in range(_NUM_SMALL)
    )

    def source(self, mode: object) -> list[Batch]:
        return []

    def build(self) -> torch.nn.Module:
        return torch.nn.Identity()

    def loss(
        self, model: torch.nn.Module, inputs: Inputs, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        score = inputs.pooled.joined.mean(1)
        return (score - batch.label).square().mean(), score.detach().sigmoid()


def dlrm_batches(size: int, rows: int) -> list[Batch]:
    """Zipf ids, and numbers."""
    random, cumulated = np.random.default_rng(0), zipf_cdf(rows)

    def ids() -> Ragged:
        ranks = np.searchsorted(cumulated, random.random(size)).astype(np.int64)
        return Ragged(torch.from_numpy(ranks), torch.arange(size + 1))

    def numbers() -> torch.Tensor:
        return torch.from_numpy(random.random(size, dtype=np.float32))

    return [
        Batch(
            {f"feature_{i}": ids() for i in range(NUM_FEATURES)},
            {f"dense_{i}": numbers() for i in range(NUM_DENSE)},
            {"label": numbers().round()},
        )
        for _ in range(_NUM_BATCHES)
    ]


def small_batches() -> list[Batch]:
    """One id of each feature."""
    one = torch.tensor([0, 1])
    return [
        Batch(
            {f"feature_{i}": Ragged(torch.tensor([b * 7919 + i]), one) for i in range(_NUM_SMALL)},
            labels={"label": torch.tensor([float(b % 2)])},
        )
        for b in range(_NUM_BATCHES)
    ]


class ByHand:
    """The loop that one would write."""

    def __init__(self, task: Task, batches: Sequence[Batch]) -> None:
        torch.manual_seed(0)
        self._task, self._batches = task, itertools.cycle(batches)
        self._features, self._model = Features(task.features), task.build()
        dense = task.optimizer(self._model)
        self._optimizer = Optimizer([self._features, self._model], dense)

    def run(self, num_steps: int) -> float:
        """The last loss."""
        for batch in itertools.islice(self._batches, num_steps):
            self._optimizer.zero_grad()
            inputs = Inputs(self._features(batch.features), dense_matrix(batch, self._task.dense))
            loss, _ = self._task.loss(self._model, inputs, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        return loss.item()


class ByTrainer:
    """`Trainer.fit`, as it is without options."""

    def __init__(self, task: Task, batches: Sequence[Batch], **options: Any) -> None:
        self._trainer = Trainer(task, TrainSettings(**options))
        self._batches = itertools.cycle(batches)

    def run(self, num_steps: int) -> float:
        """The mean loss."""
        return self._trainer.fit(itertools.islice(self._batches, num_steps)).figures.loss


def sample(run: Callable[[int], float], num_steps: int) -> Sample:
    """Milliseconds of a step."""
    with timed() as window:
        run(num_steps)
    return Sample(window.seconds / num_steps * 1e3, window.others_cores)


def compare(
    question: Question, make_task: Callable[[], Task], batches: list[Batch], seconds: float
) -> None:
    """Warm up, check that both train the same model, and measure."""
    runs = {
        "trainer": ByTrainer(make_task(), batches).run,
        "by_hand": ByHand(make_task(), batches).run,
    }
    losses = {name: [run(1) for _ in range(_NUM_BATCHES)] for name, run in runs.items()}
    if losses["trainer"] != losses["by_hand"]:
        raise BenchmarkError(f"[trainer] expected equal losses, got {losses}")
    per_step = sample(runs["by_hand"], _NUM_BATCHES).value / 1e3
    num_steps = max(4, round(seconds / per_step))
    question.measure(
        {name: functools.partial(sample, run, num_steps) for name, run in runs.items()}
    )


def run(options: Options) -> None:
    """Print a line for each model."""
    torch.set_num_threads(2)
    rules = options.rules
    size, rows = (_QUICK_BATCH, _QUICK_ROWS) if options.is_quick else (_BATCH, _ROWS)
    say(f"[trainer] DLRM, batch {size}, and {_NUM_SMALL} features at batch 1")
    sizes = {"batch": size, "features": NUM_FEATURES, "ids": rows, "threads": 2}
    question = Question("trainer_dlrm", "ms a step", sizes, rules)
    seconds = rules.sample_seconds if options.is_quick else _DLRM_SECONDS
    compare(question, Ranker, dlrm_batches(size, rows), seconds)
    sizes = {"batch": 1, "features": _NUM_SMALL, "dim": 8, "threads": 2}
    question = Question("trainer_small", "ms a step", sizes, rules)
    compare(question, Small, small_batches(), rules.sample_seconds)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
