"""`Task`: what to train. Features, data, model and loss in one class."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import torch

from monolith.data import Batch
from monolith.errors import InvalidArgumentError
from monolith.nn import Feature
from monolith.observe.learning import Auc, LogLoss
from monolith.optim import Optimizer
from monolith.train.driver import Hook
from monolith.train.figures import Metric
from monolith.train.inputs import Inputs


class Mode(str, Enum):
    """What a source is for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"

    def __str__(self) -> str:
        return self.value


@dataclass
class TaskSettings:
    """Settings of a task: a dataclass, so that a command line can set them by name.

    Subclass it in a task to add your own.

    Args:
        data: mode -> path, glob or folder.
        batch_size: samples of a batch.
    """

    data: dict[str, str] = field(default_factory=dict)
    batch_size: int = 4096

    def __post_init__(self) -> None:
        self.data = _Paths(self.data)


class _Paths(dict[str, str]):
    """Says what is missing."""

    def __missing__(self, mode: str) -> str:
        raise InvalidArgumentError(
            f"[TaskSettings.data] expected a path for mode {str(mode)!r}, got "
            f"{', '.join(self) or 'none'}; the command line takes --data {mode}=PATH"
        )


class Task(ABC):
    """A model, its features and its data. It trains unchanged wherever tables live.

    Subclass it; `features`, `dense` and `label` say what the model takes, `source` where samples
    come from, `build` makes the dense model, `loss` uses it.

    Args:
        settings: of the class `Settings` of the task; its defaults if None.

    Attributes:
        features: of the model.
        dense: names of dense columns.
        label: name of the label, or of several.

    Example:
        >>> import torch.nn.functional as F
        >>> from monolith import data
        >>> class Clicks(Task):
        ...     features = [Feature("user", dim=8), Feature("item", dim=8)]
        ...     dense, label = ["hour"], "click"
        ...     def source(self, mode):
        ...         return data.parquet(self.settings.data[mode]).batch(self.settings.batch_size)
        ...     def build(self):
        ...         return torch.nn.Linear(17, 1)
        ...     def loss(self, model, inputs, batch):
        ...         logit = model(inputs.matrix).squeeze(1)
        ...         return F.binary_cross_entropy_with_logits(logit, batch.label), logit.sigmoid()
        >>> Clicks().name
        'Clicks'
    """

    features: ClassVar[Sequence[Feature]] = ()
    dense: ClassVar[Sequence[str]] = ()
    label: ClassVar[str | Sequence[str]] = "label"
    Settings: ClassVar[type[TaskSettings]] = TaskSettings

    def __init__(self, settings: Any = None) -> None:
        self.settings: Any = self.Settings() if settings is None else settings

    @property
    def name(self) -> str:
        """Of the task: the name of its class."""
        return type(self).__name__

    @abstractmethod
    def source(self, mode: Mode) -> Iterable[Batch]:
        """Batches for a mode; a `Pipeline`, or anything that can be iterated."""

    @abstractmethod
    def build(self) -> torch.nn.Module:
        """The dense model."""

    @abstractmethod
    def loss(
        self, model: torch.nn.Module, inputs: Inputs, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss, a scalar, and prediction, a row for each sample.

        Args:
            model: what `build` made.
            inputs: rows of the features by name, dense columns, and one matrix of both.
            batch: all of the batch, with labels.
        """

    def predict(self, model: torch.nn.Module, inputs: Inputs, batch: Batch) -> torch.Tensor:
        """The prediction alone; that of `loss` unless overridden, which then needs labels.

        Raises:
            InvalidArgumentError: `loss` asked for a label that the batch has not.
        """
        try:
            return self.loss(model, inputs, batch)[1]
        except (KeyError, ValueError) as error:
            labels = [self.label] if isinstance(self.label, str) else self.label
            missing = [name for name in labels if name not in batch.labels]
            if not missing:
                raise
            raise InvalidArgumentError(
                f"[Task.predict] expected label {', '.join(missing)} in the batch, for a "
                "prediction is that of loss, got none; override predict(model, inputs, batch)"
            ) from error

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer | None:
        """Of the dense model; Adam unless overridden. None where there is nothing to train."""
        parameters = list(model.parameters())
        return torch.optim.Adam(parameters, lr=1e-3) if parameters else None

    def schedule(self, optimizer: Optimizer) -> torch.optim.lr_scheduler.LRScheduler | None:
        """Of learning rates, stepped after each step; None unless overridden.

        Args:
            optimizer: has a group for each group of the dense optimizer, and for each segment of
                each table. Optimizers of features may have schedules of their own instead.
        """
        return None

    def metrics(self) -> Mapping[str, Metric]:
        """New figures of predictions and labels, by name.

        AUC and log loss of one label, unless overridden; they are left out, with a warning, where
        predictions are no probabilities or labels not 0 and 1.
        """
        is_one = isinstance(self.label, str) or len(self.label) == 1
        return {"auc": Auc(), "log_loss": LogLoss()} if is_one else {}

    @classmethod
    def has_default_metrics(cls) -> bool:
        """Whether the task computes the metrics of `Task`, which may not fit its predictions."""
        return cls.metrics is Task.metrics

    def hooks(self) -> Sequence[Hook]:
        """Of a run; asked when it begins."""
        return ()
