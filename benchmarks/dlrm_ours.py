"""The DLRM of examples/dlrm.py on the trainer, and as a loop written by hand on its parts.

python -m benchmarks.dlrm_ours     answers commands (worker.py)

One process has the tables once; a sample is of

    trainer   `Trainer.fit` on batches that are ready
    loop      the same tables, model and optimizer, on tensors that are ready
    parquet   `Trainer.fit` on batches that one thread reads from a Parquet file
"""

import itertools
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import monolith as ml
from benchmarks.click_model import (
    NUM_DENSE,
    NUM_FEATURES,
    Batch,
    ClickSystem,
    ClickWorker,
    Sizes,
    batches,
    towers,
)
from benchmarks.click_torch import DenseStep, adagrad
from benchmarks.harness import ROOT, BenchmarkError, timed
from benchmarks.step_split import StepSplit
from benchmarks.worker import serve
from benchmarks.workload import INITIAL_ACCUMULATOR, LEARNING_RATE, Floats, Int64s
from examples import dlrm
from monolith.ops import Ragged

FOLDER = ROOT / "build" / "benchmarks" / "dlrm"
_AHEAD = 2  # batches that the thread reads ahead
_ROW_GROUP = 100_000


class Ranker(dlrm.Ranker):
    """The example, with the optimizers of the other systems."""

    features = [
        ml.Feature(
            f"feature_{i}",
            dim=dlrm.DIM,
            optimizer=ml.Adagrad(LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR),
        )
        for i in range(NUM_FEATURES)
    ]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return adagrad(model)


class LastLoss(ml.train.Hook):
    """Keeps the losses of a run."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def after_run(self, ctx: ml.train.StepContext, results: ml.train.StepResults) -> None:
        self.losses.append(results.value.loss)


class OurDlrm(ClickSystem):
    """The trainer; a step is a `fit` of one batch here, and of many in a sample."""

    def versions(self) -> dict[str, str]:
        return {"monolith": ml.__version__, "torch": torch.__version__}

    def create(self, sizes: Sizes) -> None:
        torch.set_num_threads(sizes.threads)
        self.sizes = sizes
        self.trainer = ml.Trainer(Ranker())
        parameters = list(self.trainer.model.parameters())
        first = [array for tower in towers("dlrm") for pair in tower for array in pair]
        for parameter, values in zip(parameters, first, strict=True):
            parameter.data.copy_(torch.from_numpy(values))

    def insert(self, flat: Int64s) -> None:
        for table, ids, _ in self._by_table(flat):
            table.lookup_or_insert(ids)

    def assign(self, flat: Int64s, values: Floats) -> None:
        for table, ids, mine in self._by_table(flat):
            table.assign(ids, torch.from_numpy(values[mine]))

    def _by_table(self, flat: Int64s) -> Iterator[tuple[Any, torch.Tensor, Any]]:
        """Tables that have some of the numbers, their ids, and where they are."""
        features, ids = np.divmod(flat, self.sizes.rows)
        for number in np.unique(features):
            mine = features == number
            table = self.trainer.features.tables[f"feature_{number}"]
            yield table, torch.from_numpy(ids[mine]), mine

    def prepare(self, batch: Batch) -> ml.data.Batch:
        splits = torch.arange(len(batch.labels) + 1)
        ids, dense = torch.from_numpy(batch.ids.T.copy()), torch.from_numpy(batch.dense.T.copy())
        return ml.data.Batch(
            {f"feature_{i}": Ragged(ids[i], splits) for i in range(NUM_FEATURES)},
            {f"dense_{i}": dense[i] for i in range(NUM_DENSE)},
            {"label": torch.from_numpy(batch.labels)},
        )

    def fit(self, source: Iterable[ml.data.Batch]) -> list[float]:
        """Losses of the steps."""
        hook = LastLoss()
        self.trainer.fit(source, hooks=[hook])
        return [float(loss) for loss in hook.losses]

    def train(self, prepared: ml.data.Batch) -> float:
        return self.fit([prepared])[0]

    def loop(self, source: Iterable[tuple[ml.data.Batch, torch.Tensor]]) -> torch.Tensor:
        """What the trainer does, without it; the last loss."""
        trainer = self.trainer
        features, model, optimizer = trainer.features, trainer.model, trainer.optimizer
        features.train()
        loss = torch.tensor(math.nan)
        for batch, dense in source:
            optimizer.zero_grad()
            logits = model(dense, features(batch.features).joined)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.label)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return loss.detach()


class DlrmWorker(ClickWorker):
    """Has samples of three kinds, and can tell what a step is made of."""

    def __init__(self, system: OurDlrm) -> None:
        super().__init__(system)
        self._ours = system
        self._kinds: dict[str, Callable[[int], float]] = {
            "trainer": self._fit,
            "loop": self._loop,
            "parquet": self._fit_parquet,
        }

    def warm_up(self, sample_seconds: float) -> dict[str, Any]:
        """Also write the Parquet file, and run a few steps of each kind."""
        reply = super().warm_up(sample_seconds)
        self._dense = [torch.from_numpy(each.dense) for each in batches(self._sizes)]
        self._read = iter(parquet(self._sizes).prefetch(_AHEAD))
        for run in self._kinds.values():
            run(2)
        return reply

    def sample(self, kind: str = "trainer") -> dict[str, Any]:
        """Thousands of samples per second."""
        with timed() as window:
            loss = self._kinds[kind](self._num_steps)
        if not math.isfinite(loss):
            raise BenchmarkError(f"[dlrm] expected a finite loss, got {loss} ({kind})")
        rate = self._num_steps * self._sizes.batch / window.seconds
        return {"value": rate / 1e3, "others_cores": window.others_cores}

    def split(self, num_steps: int) -> dict[str, Any]:
        """Milliseconds of a step by what they are spent on (`StepSplit`)."""
        dense_step, label = DenseStep(self._sizes), self._batches[0].label

        def run(num_steps: int) -> None:
            self._fit(num_steps)

        def run_dense(num_steps: int) -> None:
            for _ in range(num_steps):
                dense_step(label)

        trainer: Any = self._ours.trainer
        engine = trainer.features.pending.engine
        calls = [(engine, name) for name in ("lookup", "sum", "step")]
        return StepSplit(run, run_dense, calls).measure(num_steps)

    def _places(self, num_steps: int) -> list[int]:
        first, self._position = self._position, self._position + num_steps
        return [place % len(self._batches) for place in range(first, first + num_steps)]

    def _fit(self, num_steps: int) -> float:
        return self._ours.fit([self._batches[place] for place in self._places(num_steps)])[-1]

    def _loop(self, num_steps: int) -> float:
        places = self._places(num_steps)
        return float(self._ours.loop([(self._batches[p], self._dense[p]) for p in places]))

    def _fit_parquet(self, num_steps: int) -> float:
        return self._ours.fit(itertools.islice(self._read, num_steps))[-1]


def parquet(sizes: Sizes) -> ml.data.Pipeline:
    """The batches from a file, again and again."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    made = batches(sizes)
    ids, dense = (
        np.concatenate([getattr(each, part) for each in made]) for part in ("ids", "dense")
    )
    columns = {f"feature_{i}": ids[:, i] for i in range(NUM_FEATURES)}
    columns |= {f"dense_{i}": dense[:, i] for i in range(NUM_DENSE)}
    columns["label"] = np.concatenate([each.labels for each in made])
    rows = pa.table({name: np.ascontiguousarray(column) for name, column in columns.items()})
    pq.write_table(rows, FOLDER / "samples.parquet", row_group_size=_ROW_GROUP)
    return ml.data.parquet(FOLDER).repeat().batch(sizes.batch)


if __name__ == "__main__":
    serve(DlrmWorker(OurDlrm()))
