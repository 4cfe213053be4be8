"""Look up the inputs of a batch and compute its loss: columns, one matrix of rows, checked outputs.

`Trainee` is a task with everything that its training changes; training, evaluation and prediction
look up and compute through it.
"""

import contextlib
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import torch

from monolith.cluster.job.served_dense import ServedDense
from monolith.data import Batch, Pipeline
from monolith.data.batch import with_columns
from monolith.data.columns import first_names
from monolith.errors import InvalidArgumentError
from monolith.features import FeatureEngine
from monolith.nn import Embedded, Features
from monolith.ops import Ragged, RaggedColumns
from monolith.ops.devices import DeviceTransfer, Fetched
from monolith.optim import Optimizer
from monolith.train.figures import Meter
from monolith.train.run_state import StepClock
from monolith.train.settings import TrainSettings

if TYPE_CHECKING:
    from monolith.train.task import Task


_LARGEST = 2**53  # a larger number is an id, usually the hash of a text


class TaskColumns:
    """The names of the columns that a task reads.

    A source without column types reads whole numbers as ids and other numbers as dense columns.
    `bind` moves the columns that the task names to the labels and dense columns of a batch.
    `select` lets a pipeline read the columns that the task names, and no others.

    Args:
        labels: Names of the label columns.
        dense: Names of the dense columns.
        features: Names of the columns with ids of features.
        others: Names of further columns; None if the task may read every column.
    """

    def __init__(
        self,
        labels: Sequence[str],
        dense: Sequence[str],
        features: Sequence[str] = (),
        others: Sequence[str] | None = (),
    ) -> None:
        self.labels, self.dense = tuple(labels), tuple(dense)
        self.features = tuple(features)
        self.others = None if others is None else tuple(others)

    @classmethod
    def of(cls, task: "Task") -> "TaskColumns":
        """Return the columns of a task."""
        labels = [task.label] if isinstance(task.label, str) else task.label
        others = [task.columns] if isinstance(task.columns, str) else task.columns
        return cls(labels, task.dense, [feature.name for feature in task.features], others)

    def select(self, source: Iterable[Batch], *, with_labels: bool = True) -> Iterable[Batch]:
        """Return a pipeline that reads only what the task names, or declares in the pipeline.

        Columns of an argument `columns` or `adds` of the pipeline, weight and time stay. A source
        that is no pipeline is returned as it is; so is one that lacks a column of the task, because
        the error of its first batch names all columns.

        Args:
            source: Source of batches.
            with_labels: Whether every label is required, as in `bind`.

        Raises:
            InvalidArgumentError: The pipeline lacks one of the further columns.
        """
        if not isinstance(source, Pipeline) or self.others is None:
            return source
        known = source.columns.names()
        self._check_others(known)
        required = {*self.features, *self.dense, *(self.labels if with_labels else ())}
        named = {*required, *self.labels, *self.others}
        kept = [name for name in known if name in named or name not in source.inferred]
        is_whole = len(kept) == len(known) or not required.issubset(known)
        return source if is_whole or not kept else source.select(*kept)

    def _check_others(self, known: Sequence[str]) -> None:
        for name in self.others or ():
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise InvalidArgumentError(
                    f"[Task.columns] expected columns of the source, {first_names(known)}, got "
                    f"{name!r}{hint}"
                )

    def bind(self, batch: Batch, *, with_labels: bool = True) -> Batch:
        """Return the batch with the columns of the task among its labels and dense columns.

        Args:
            batch: Batch as the source returns it.
            with_labels: Whether every label is required; False binds the labels that are present.

        Raises:
            ValueError: A column is missing, or does not have one number for each sample.
        """
        labels = [name for name in self.labels if with_labels or _has(batch, name)]
        is_bound = all(name in batch.labels for name in labels)
        if is_bound and all(name in batch.dense for name in self.dense):
            return batch
        label = {name: _numbers(batch, "label", name) for name in labels}
        dense = {name: _numbers(batch, "dense", name) for name in self.dense}
        names = {*label, *dense}
        return replace(
            batch,
            features=_without(batch.features, names),
            dense=_with(batch.dense, names, dense),
            labels=_with(batch.labels, names, label),
        )


def _without(features: Mapping[str, Ragged], names: Collection[str]) -> Mapping[str, Ragged]:
    if isinstance(features, RaggedColumns):
        return features.without(names)
    return {name: ids for name, ids in features.items() if name not in names}


def _with(
    columns: Mapping[str, torch.Tensor], names: Collection[str], new: Mapping[str, torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    return with_columns(columns, {**{k: v for k, v in columns.items() if k not in names}, **new})


def _has(batch: Batch, name: str) -> bool:
    return any(name in columns for columns in (batch.labels, batch.dense, batch.features))


def _numbers(batch: Batch, part: str, name: str) -> torch.Tensor:
    """Return a column of labels, dense columns or features; ids become float32."""
    for columns in (batch.labels, batch.dense):
        if name in columns:
            return columns[name]
    if name in batch.features:
        return _as_numbers(part, name, batch.features[name])
    known = ", ".join([*batch.features, *batch.dense, *batch.labels])
    raise ValueError(f"[Task.{part}] expected column {name!r} in the batch, got {known}")


def _as_numbers(part: str, name: str, ids: Ragged) -> torch.Tensor:
    if len(ids.values) != ids.num_rows or not bool((ids.lengths == 1).all()):
        raise ValueError(
            f"[Task.{part}] expected one number for each sample in column {name!r}, got "
            f"{len(ids.values)} in {ids.num_rows} samples"
        )
    for large in ids.values[ids.values.abs() > _LARGEST][:1].tolist():
        raise ValueError(
            f"[Task.{part}] expected numbers up to 2**53 in column {name!r}, got {large}; text is "
            "read as ids of 64 bits: convert it, or make a feature of it"
        )
    return ids.values.float()


class Inputs:
    """The inputs of the dense model for a batch: rows of all features, and dense columns.

    Attributes:
        matrix: Features side by side, then the dense columns, float32 (batch, width + num_columns).
            The lookup writes this matrix, so that a model that takes all of it costs no copy.
    """

    def __init__(self, rows: Embedded, dense: torch.Tensor | None) -> None:
        self._rows, self._dense = rows, dense
        self.matrix = rows.joined

    def ready(self, batch: Batch) -> Batch:
        """Return the batch for the model, whose columns and inputs the model may use from now on.

        Args:
            batch: Batch of the inputs.
        """
        return batch

    @property
    def dense(self) -> torch.Tensor:
        """Dense columns of the task side by side, float32 (batch, num_columns).

        The tensor is not a view of `matrix`. Without dense columns it has width 0.
        """
        return self.matrix.new_empty(len(self.matrix), 0) if self._dense is None else self._dense

    @functools.cached_property
    def pooled(self) -> Embedded:
        """Feature -> rows, float32 (batch, dim); (batch, max_length, dim) with combiner "first".

        `pooled.joined` is a view of all features side by side, (batch, width).
        """
        return self._rows if self._dense is None else self._rows.without_dense()


class DeviceInputs(Inputs):
    """Inputs on the device of the dense model, with the labels and other columns of the batch.

    Torch's graph is cut here. The model differentiates the copies on the device; the gradients of
    the copies come back, and `queue_gradients` runs backward from the rows in main memory.

        lookup -> matrix, rows     | send  ->  copies -> model -> loss       device
        queue  <- their gradients  | fetch <-  gradients of the copies

    Args:
        host: Inputs in main memory.
        batch: Batch of the inputs.
        transfer: Transfer to the device and back.
    """

    def __init__(self, host: Inputs, batch: Batch, transfer: DeviceTransfer) -> None:
        rows, has_dense = host._rows, host._dense is not None
        outputs = [rows.joined, *rows.apart.values()]
        self._transfer = transfer
        self._sent = transfer.send([*outputs, *_columns(batch)])
        self._batch = _with_columns(batch, self._sent.tensors[len(outputs) :])
        copies = self._sent.tensors[: len(outputs)]
        self._trained = [
            pair for pair in zip(outputs, copies, strict=True) if pair[0].requires_grad
        ]
        for _, copy in self._trained:
            copy.requires_grad_()
        self._gradients: tuple[list[torch.Tensor], Fetched] | None = None
        names = list(rows.apart)
        rows = rows.with_tensors(copies[0], dict(zip(names, copies[1:], strict=True)))
        super().__init__(rows, rows.joined if has_dense else None)

    def ready(self, batch: Batch) -> Batch:
        """Return the batch on the device, with its ids in main memory; the host does not wait."""
        self._sent.await_on_stream()
        return self._batch

    @property
    def dense(self) -> torch.Tensor:
        """Dense columns of the task side by side, float32 (batch, num_columns)."""
        return self.matrix.detach()[:, self.pooled.joined.shape[1] :].clone()

    def fetch_gradients(self) -> None:
        """Begin to copy the gradients to main memory, after the backward of the model."""
        pairs = [(root, copy.grad) for root, copy in self._trained if copy.grad is not None]
        gradients = [gradient for _, gradient in pairs if gradient is not None]
        fetched = self._transfer.fetch(gradients)
        self._gradients = [root for root, _ in pairs], fetched
        self._trained = []

    def await_gradients(self) -> None:
        """Wait until the gradients are in main memory."""
        if self._gradients is not None:
            self._gradients[1].wait()

    def queue_gradients(self) -> None:
        """Queue the gradients on the tables; wait for them first. Any thread may call it, once."""
        gradients, self._gradients = self._gradients, None
        if gradients is not None and gradients[0]:
            roots, fetched = gradients
            torch.autograd.backward(roots, fetched.wait())


def _columns(batch: Batch) -> list[torch.Tensor]:
    """Return all columns of a batch but its ids."""
    others = [column for column in (batch.weight, batch.time) if column is not None]
    return [*batch.dense.values(), *batch.labels.values(), *others]


def _with_columns(batch: Batch, columns: Sequence[torch.Tensor]) -> Batch:
    """Return a batch with other tensors in the place of its `_columns`."""
    rest = iter(columns)
    dense = {name: next(rest) for name in batch.dense}
    labels = {name: next(rest) for name in batch.labels}
    return Batch(
        batch.features,
        with_columns(batch.dense, dense),
        with_columns(batch.labels, labels),
        None if batch.weight is None else next(rest),
        None if batch.time is None else next(rest),
        batch.event_time,
    )


def dense_matrix(batch: Batch, names: Iterable[str]) -> torch.Tensor:
    """Return the columns side by side, float32 (batch, num_columns).

    Raises:
        ValueError: The batch lacks a column.
    """
    columns = [_column(batch.dense, name) for name in names]
    if not columns:
        return torch.empty(len(batch), 0)
    return columns[0] if len(columns) == 1 else torch.cat(columns, 1)


def _column(dense: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in dense:
        raise ValueError(
            f"[Task.dense] expected column {name!r} in the batch, got {', '.join(dense) or 'none'}"
        )
    column = dense[name].float()
    return column.unsqueeze(1) if column.dim() == 1 else column


def checked_outputs(
    task: "Task", model: torch.nn.Module, inputs: Inputs, batch: Batch, *, is_training: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return loss and prediction of `task.loss`, after a check of both.

    Args:
        task: Task that computes the loss.
        model: Dense model.
        inputs: Rows and dense columns of the batch.
        batch: Batch with labels.
        is_training: Whether the loss must have a gradient.

    Raises:
        TypeError: `Task.loss` does not return a pair of tensors.
        ValueError: The loss is not one number or has no gradient, or the prediction has no rows.
        RuntimeError: `Task.loss` raised StopIteration, which would end the run like its data.
    """
    try:
        outputs = task.loss(model, inputs, batch)
    except StopIteration as error:
        raise RuntimeError("[Task.loss] expected a loss, got StopIteration") from error
    is_pair = isinstance(outputs, tuple | list) and len(outputs) == 2
    if not is_pair or not all(isinstance(output, torch.Tensor) for output in outputs):
        kinds = [type(output).__name__ for output in outputs] if is_pair else []
        got = f"({', '.join(kinds)})" if is_pair else _kind(outputs)
        raise TypeError(f"[Task.loss] expected loss and prediction, two tensors, got {got}")
    loss, prediction = outputs
    if loss.numel() != 1:
        raise ValueError(
            f"[Task.loss] expected a loss of one number, got shape {tuple(loss.shape)}; take its "
            "mean"
        )
    if prediction.dim() == 0:
        raise ValueError("[Task.loss] expected a prediction for each sample, got one number")
    if is_training and not loss.requires_grad:
        raise ValueError(
            "[Task.loss] expected a loss with a gradient, got one without: it does not depend on "
            "features or model, or was detached"
        )
    return loss, prediction


def _kind(outputs: Any) -> str:
    number = f" of {len(outputs)}" if isinstance(outputs, tuple | list) else ""
    return f"{type(outputs).__name__}{number}"


@dataclass(frozen=True)
class Trainee:
    """A task with everything that its training changes: tables, dense model, optimizer, clock.

    Training, evaluation and prediction look up and compute through this object alone.

    Attributes:
        task: The task.
        settings: Settings of the trainer.
        columns: Names of the task's label columns and dense columns.
        features: Features with their tables.
        model: Dense model.
        optimizer: Optimizer of the dense parameters and the tables.
        clock: Clock of the updates.
        served: Dense parameters on the servers of a job; None without a job.
        transfer: Transfer to the device of the dense model; None if that is the CPU.
        reader: Engine that reads without training; None takes that of the features.
    """

    task: "Task"
    settings: TrainSettings
    columns: TaskColumns
    features: Features
    model: torch.nn.Module
    optimizer: Optimizer
    clock: StepClock
    served: ServedDense | None = None
    transfer: DeviceTransfer | None = None
    reader: FeatureEngine | None = None

    def look_up(
        self, batch: Batch, *, is_training: bool, engine: FeatureEngine | None = None
    ) -> Inputs:
        """Return the rows of all features, followed by the dense columns, in one matrix.

        Safe concurrently with a step.

        Args:
            batch: Batch with the ids and dense columns.
            is_training: Whether the rows are trained; not with another engine.
            engine: Engine of the features to read without training, such as a `CutEngine`; None
                takes that of the tables.
        """
        engine = engine or (None if is_training else self.reader)
        # Without features, the dense columns alone know the number of samples.
        with_dense = self.columns.dense or not self.features.features
        dense = dense_matrix(batch, self.columns.dense) if with_dense else None
        if engine is not None:
            return Inputs(self.features.read_from(engine, batch.features, dense=dense), dense)
        return Inputs(
            self.features.read(batch.features, dense=dense, is_training=is_training), dense
        )

    def send(self, inputs: Inputs, batch: Batch) -> Inputs:
        """Return the inputs on the device of the dense model, in which `forward` takes them."""
        return inputs if self.transfer is None else DeviceInputs(inputs, batch, self.transfer)

    def forward(
        self, inputs: Inputs, batch: Batch, *, is_training: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the checked loss and prediction of a batch, in the precision of the settings.

        The loss is not of 16 bits.
        """
        batch = inputs.ready(batch)
        with self._autocast():
            loss, prediction = checked_outputs(
                self.task, self.model, inputs, batch, is_training=is_training
            )
        return loss.float() if loss.dtype.itemsize < 4 else loss, prediction

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        kind = "cpu" if self.transfer is None else self.transfer.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=self.settings.precision == "bf16")

    def score(
        self, batch: Batch, engine: FeatureEngine | None = None
    ) -> tuple[float, torch.Tensor]:
        """Return loss and prediction of a batch in main memory, without training.

        Args:
            batch: Batch with labels.
            engine: Engine of the features, as in `look_up`.
        """
        inputs = self.send(self.look_up(batch, is_training=False, engine=engine), batch)
        outputs = self.forward(inputs, batch, is_training=False)
        loss, prediction = self._fetched(*outputs)
        return loss.item(), prediction

    def predict(self, batch: Batch) -> torch.Tensor:
        """Return the prediction of a batch in main memory, without training."""
        inputs = self.send(self.look_up(batch, is_training=False), batch)
        with self._autocast():
            prediction = self.task.predict(self.model, inputs, inputs.ready(batch))
        return self._fetched(prediction)[0]

    def _fetched(self, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        return tensors if self.transfer is None else self.transfer.fetch(tensors).wait()

    def clip_gradients(self, max_norm: float) -> None:
        """Bound the norm over the gradients of all dense parameters and tables by `max_norm`."""
        groups = self.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def new_meter(self) -> Meter:
        """Return a meter of the task's metrics; default metrics that do not fit are dropped."""
        return Meter(self.task.metrics, is_lenient=self.task.has_default_metrics())
