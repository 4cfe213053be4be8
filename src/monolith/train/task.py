"""`Task`: features, data, model and loss in one class."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from monolith.data import Batch
from monolith.errors import InvalidArgumentError
from monolith.nn import Feature
from monolith.observe.learning import Auc, Calibration, LogLoss
from monolith.optim import Optimizer
from monolith.train.driver import Hook
from monolith.train.figures import Metric
from monolith.train.inputs import Inputs
from monolith.train.settings import TrainSettings


class Mode(str, Enum):
    """The purpose of a source: training, evaluation or prediction."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"

    def __str__(self) -> str:
        return self.value


@dataclass
class TaskSettings:
    """Settings of a task, a dataclass whose fields the command line sets by name.

    A task may subclass these settings to add fields.

    Args:
        data: Mode -> file, glob or folder of samples.
        batch_size: Number of samples of a batch.
    """

    data: dict[str, str] = field(default_factory=dict)
    batch_size: int = 4096

    def __post_init__(self) -> None:
        self.data = _Paths(self.data)


class _Paths(dict[str, str]):
    def __missing__(self, mode: str) -> str:
        raise InvalidArgumentError(
            f"[TaskSettings.data] expected a path for mode {str(mode)!r}, got "
            f"{', '.join(self) or 'none'}; the command line takes --data {mode}=PATH"
        )


class Task(ABC):
    """A model with its features, data and loss; base class of users' tasks.

    A task is the same for tables in the trainer and tables on servers. A subclass sets `features`,
    `dense` and `label`, the columns that the model takes, and defines `source`, the samples,
    `build`, the dense model, and `loss`.

    A trainer reads the columns that the class names, and those that `source` declares with
    arguments `columns` or `adds`. To read another column of a batch is an error that names it.

    Args:
        settings: Settings of the task, an object of its class `Settings`; None takes the defaults.

    Attributes:
        features: Features of the model; a model of dense columns alone has none.
        missing: Value that an id without a row reads as in training: "initial", the row that the id
            will get, or "zeros". Evaluation and prediction read zeros always.
        dense: Names of the dense columns.
        label: Name of the label column, or names of several.
        columns: Names of further columns that `loss`, a hook or other code reads in a batch; None
            reads every column of the source.
        evict_every_hours: Table -> hours of its clock between two removals of its expired rows
            during a run.
        Settings: Class of the settings.

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
    missing: str = "initial"
    dense: ClassVar[Sequence[str]] = ()
    label: ClassVar[str | Sequence[str]] = "label"
    columns: ClassVar[Sequence[str] | None] = ()
    evict_every_hours: ClassVar[Mapping[str, int]] = MappingProxyType({})
    Settings: ClassVar[type[TaskSettings]] = TaskSettings

    def __init__(self, settings: Any = None) -> None:
        self.settings: Any = self.Settings() if settings is None else settings

    @classmethod
    def from_settings(cls, settings: Any) -> "Task":
        """Return a task with the settings that the command line resolved."""
        return cls(settings)

    @property
    def name(self) -> str:
        """Name of the task: the name of its class."""
        return type(self).__name__

    @abstractmethod
    def source(self, mode: Mode) -> Iterable[Batch]:
        """Return the batches for a mode: a `Pipeline`, or any other iterable of batches."""

    @abstractmethod
    def build(self) -> torch.nn.Module:
        """Return a new dense model."""

    @abstractmethod
    def loss(
        self, model: torch.nn.Module, inputs: Inputs, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss, a scalar, and the prediction, a row for each sample.

        Args:
            model: The dense model that `build` returned.
            inputs: One matrix of features and dense columns, and both apart.
            batch: The whole batch, with labels.
        """

    def predict(self, model: torch.nn.Module, inputs: Inputs, batch: Batch) -> torch.Tensor:
        """Return the prediction alone.

        Unless overridden, this is the prediction of `loss`, which may require labels.

        Raises:
            InvalidArgumentError: `loss` requires a label that the batch does not have.
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
        """Return the optimizer of the dense model; None for a model without parameters.

        Unless overridden, this is Adam with a learning rate of 0.001.
        """
        parameters = list(model.parameters())
        return torch.optim.Adam(parameters, lr=1e-3) if parameters else None

    def change_gradients(self, optimizer: Optimizer, step: int) -> None:  # noqa: B027
        """Change the gradients of a step, after backward and the trainer's clipping.

        Unless overridden, this does nothing.

        Args:
            optimizer: Optimizer with the gradients of the dense parameters, and in the gradient of
                each anchor the norm of the queued gradients of tables.
            step: Number of steps before this one.
        """

    def schedule(self, optimizer: Optimizer) -> torch.optim.lr_scheduler.LRScheduler | None:
        """Return a schedule of learning rates, which is stepped after each step; None without one.

        Args:
            optimizer: Optimizer with a group for each group of the dense optimizer, and for each
                segment of each table. The optimizer of a feature may have its own schedule instead.
        """
        return None

    def metrics(self) -> Mapping[str, Metric]:
        """Return new metrics of predictions and labels by name.

        Unless overridden, a task with one label has AUC, log loss and calibration. A run leaves
        them out, with a warning, if predictions are not probabilities or labels are not 0 and 1.
        """
        is_one = isinstance(self.label, str) or len(self.label) == 1
        if not is_one:
            return {}
        return {"auc": Auc(), "log_loss": LogLoss(), "calibration": Calibration()}

    @classmethod
    def has_default_metrics(cls) -> bool:
        """Whether the task does not override `metrics`, so that its metrics may not fit."""
        return cls.metrics is Task.metrics

    def train_settings(self, settings: TrainSettings) -> TrainSettings:
        """Return the options of a trainer of this task; called when the trainer is made.

        Args:
            settings: Options that the trainer was given.
        """
        return settings

    def hooks(self) -> Sequence[Hook]:
        """Return the hooks of a run; called when the run begins."""
        return ()


class TaskParams(ABC):
    """Parameters that make a task class; the command line reads these from a task file too."""

    @abstractmethod
    def task_class(self) -> type[Task]:
        """Return the class of the task, made with these parameters."""
