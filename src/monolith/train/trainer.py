"""`Trainer`: fits, evaluates and predicts with a task."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from monolith.data import Batch
from monolith.nn import Features
from monolith.optim import Optimizer
from monolith.train.columns import TaskColumns
from monolith.train.driver import drive
from monolith.train.inputs import Inputs, dense_matrix
from monolith.train.loop import StepOutput, TrainStep
from monolith.train.task import Mode, Task
from monolith.util.hooks import Hook
from monolith.util.run import Run

__all__ = ["TrainSettings", "Trainer"]


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    Args:
        steps: most steps of a `fit`; until the data ends if None.
        seed: of the dense model and of everything drawn.
    """

    steps: int | None = None
    seed: int = 0


class Trainer:
    """Trains a task in this process.

    Args:
        task: what to train.
        settings: how.

    Attributes:
        features: the tables.
        model: the dense model.
        optimizer: of both.
        run: counts steps over all calls of `fit`.
    """

    def __init__(self, task: Task, settings: TrainSettings | None = None) -> None:
        self.task = task
        self.settings = settings or TrainSettings()
        torch.manual_seed(self.settings.seed)
        self.features = Features(task.features)
        self.model = task.build()
        self.optimizer = Optimizer([self.features, self.model], task.optimizer(self.model))
        labels = [task.label] if isinstance(task.label, str) else list(task.label)
        self.columns = TaskColumns(labels, task.dense, list(self.features.features))
        self.run = Run(global_step=0)

    def fit(self, source: Iterable[Batch] | None = None, hooks: Sequence[Hook] = ()) -> Run:
        """Train until the data ends, the steps are done, or a hook requests a stop."""
        batches = iter(self.task.source(Mode.TRAIN) if source is None else source)
        self.features.train()
        self.model.train()
        step = TrainStep(self, batches)
        return drive(step, hooks, run=self.run)

    def inputs(self, batch: Batch) -> Inputs:
        """Look up the features of a batch."""
        return Inputs(self.features(batch.features), dense_matrix(batch, self.task.dense))

    def predict(self, source: Iterable[Batch] | None = None) -> Iterator[StepOutput]:
        """The prediction of each batch; nothing is trained."""
        self.features.eval()
        self.model.eval()
        for batch in self.task.source(Mode.PREDICT) if source is None else source:
            batch = self.columns.bind(batch, with_labels=False)
            with torch.no_grad():
                prediction = self.task.predict(self.model, self.inputs(batch), batch)
            yield StepOutput(batch, None, prediction)
