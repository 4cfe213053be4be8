"""What a step of `Trainer.fit` costs beside a loop by hand, where next to nothing is computed.

1,000 features at batch 1 without a dense part, on batches that are ready: what is left is the way
through Python. The batches are those of a pipeline, all ids in one memory; and the same made by
hand, a `Ragged` for each feature. The loop by hand neither keeps figures nor looks at its loss.
`dlrm` measures both on a model of real size.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from benchmarks.harness import BenchmarkError, Sample, say, timed
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage
from monolith.data import Batch, Columns, arrow_table
from monolith.nn import Feature, Features
from monolith.ops import Ragged
from monolith.optim import Optimizer
from monolith.table.optimizers import Adagrad
from monolith.train import Task, Trainer
from monolith.train.inputs import Inputs, dense_matrix

_NUM_FEATURES = 1000
_DIM = 8
_NUM_BATCHES = 2  # as warm in the caches as a batch that was just read


class Small(Task):
    """Many features, one sample, no dense part."""

    features = tuple(
        Feature(f"feature_{i}", dim=_DIM, optimizer=Adagrad(0.05)) for i in range(_NUM_FEATURES)
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


def pipeline_batches() -> list[Batch]:
    """One id of each feature, as a pipeline gives them."""
    ids = {
        f"feature_{i}": [b * 7919 + i for b in range(_NUM_BATCHES)] for i in range(_NUM_FEATURES)
    }
    labels = [float(b % 2) for b in range(_NUM_BATCHES)]
    columns = Columns(list(ids), labels=["label"])
    return list(arrow_table({**ids, "label": labels}, columns=columns).batch(1))


def with_dicts(batches: Sequence[Batch]) -> list[Batch]:
    """The same, with a `Ragged` of its own for each feature."""
    one = torch.tensor([0, 1])
    return [
        replace(
            batch, features={n: Ragged(r.values.clone(), one) for n, r in batch.features.items()}
        )
        for batch in batches
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
            dense = dense_matrix(batch, self._task.dense)
            rows = self._features(batch.features, dense=dense if self._task.dense else None)
            inputs = Inputs(rows, dense)
            loss, _ = self._task.loss(self._model, inputs, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        return loss.item()


class ByTrainer:
    """`Trainer.fit`, as it is without options."""

    def __init__(self, task: Task, batches: Sequence[Batch]) -> None:
        self._trainer = Trainer(task)
        self._batches = itertools.cycle(batches)

    def run(self, num_steps: int) -> float:
        """The mean loss."""
        return self._trainer.fit(itertools.islice(self._batches, num_steps)).figures.loss


def sample(run: Callable[[int], float], num_steps: int) -> Sample:
    """Milliseconds of a step."""
    with timed() as window:
        run(num_steps)
    return Sample(window.seconds / num_steps * 1e3, window.others_cores)


def losses(run: Callable[[int], float]) -> list[float]:
    """Of the first steps."""
    return [run(1) for _ in range(8)]


def run(options: Options) -> None:
    """Print a line for batches of each kind."""
    say(f"[trainer] {_NUM_FEATURES} features at batch 1")
    torch.set_num_threads(2)
    batches = pipeline_batches()
    for name, given in (("trainer", batches), ("trainer_dicts", with_dicts(batches))):
        measure(name, given, options)


def measure(name: str, batches: Sequence[Batch], options: Options) -> None:
    """Print one line."""
    runs = {"trainer": ByTrainer(Small(), batches).run, "by_hand": ByHand(Small(), batches).run}
    ours, theirs = (losses(each) for each in runs.values())
    if ours != theirs:
        raise BenchmarkError(f"[trainer] expected the losses {theirs}, got {ours}")
    seconds = sample(runs["by_hand"], 8).value / 1e3
    num_steps = max(8, round(options.rules.sample_seconds / seconds))
    takes = {each: functools.partial(sample, run, num_steps) for each, run in runs.items()}
    sizes = {"batch": 1, "features": _NUM_FEATURES, "dim": _DIM, "threads": 2}
    Question(name, "ms a step", sizes, options.rules).measure(takes)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
