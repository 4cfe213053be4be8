"""Define `NativeTask`: a task with a model function, which the trainer drives as any other.

Its model function is called once with a `CollectingFactory`, to see which slots it makes; then once
for each batch, over the rows that were looked up for it.
"""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from monolith.data import Batch
from monolith.native_training.queues.queue_hooks import queue_hooks_of
from monolith.native_training.slots.slot_factories import (
    CollectingFactory,
    FeaturesFactory,
    GradsAndVars,
)
from monolith.native_training.slots.slot_tables import SlotTable, features_of
from monolith.native_training.tasks.context import Context
from monolith.native_training.tasks.loss_gradients import with_gradients
from monolith.native_training.tasks.native_params import check_built, native_params
from monolith.native_training.tasks.step_functions import StepFunctions
from monolith.native_training.util.instantiable_params import InstantiableParams
from monolith.native_training.util.params import Params
from monolith.nn import Embedded, Feature
from monolith.ops import Ragged
from monolith.train.driver import Hook
from monolith.train.inputs import Inputs
from monolith.train.task import Mode, Task

Action = Callable[[], Any]
Columns = Mapping[str, Any]
"""Columns of a batch by name: ids as `Ragged`, the rest as tensors."""


class ModelSpec(NamedTuple):
    """Hold the results of a model function: `EstimatorSpec` of the reference system.

    Attributes:
        mode: of the call.
        predictions: a row for each sample; by head if there are several.
        loss: a scalar; None in prediction.
        train_op: actions of a training step, such as that of `apply_embedding_gradients`. Without
            it, backward of the loss trains tables and dense parameters. With it, only gradients
            that were handed in train anything.
        training_hooks: of the run; those of the first call are used.
    """

    mode: Mode
    predictions: torch.Tensor | Mapping[str, torch.Tensor] | None = None
    loss: torch.Tensor | None = None
    train_op: Action | Sequence[Action] | None = None
    training_hooks: Sequence[Hook] = ()


class ServingReceiver(NamedTuple):
    """Describe a request, and how it becomes the columns of a batch.

    Attributes:
        inputs: names.
        parse: of a request by name, the columns.
    """

    inputs: Sequence[str]
    parse: Callable[[Mapping[str, Any]], dict[str, Any]]


class NativeTask(Task):
    """A task with an input function and a model function.

    Modules that are attributes of the task are its dense model. They are made in the constructor,
    since a model function is called in every step.

    Args:
        params: made by `params`.

    Attributes:
        p: the parameters.
        ctx: makes slots, takes gradients, puts functions off.
    """

    def __init__(self, params: Params) -> None:
        super().__init__()
        if not params.name:
            raise AssertionError(f'Layer params for {type(self).__name__} must have a "name"')
        check_built(params)
        self.p = params
        self._functions = StepFunctions()
        self.ctx = Context(async_functions=self._functions)
        self._collected: _Collected | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, torch.nn.Module) and hasattr(Task, name):
            raise ValueError(
                f"[NativeTask] expected a name for the module that a Task has no use for, got "
                f"{name!r} (class {type(self).__name__})"
            )
        super().__setattr__(name, value)

    @classmethod
    def params(cls) -> InstantiableParams:
        """Parameters with their defaults; `instantiate` makes the task."""
        return native_params(cls)

    @abstractmethod
    def create_input_fn(self, mode: Mode) -> Callable[[], Iterable[Columns | Batch]]:
        """A function that opens the data: batches as dictionaries of `Ragged` and tensors.

        `req_time`, int64 seconds, is the time of a sample. A `Batch` is taken as it is.
        """

    @abstractmethod
    def create_model_fn(self) -> Callable[[dict[str, Any], Mode, Any], ModelSpec]:
        """A function of the columns of a batch, the mode and a config, which is None."""

    def create_serving_input_receiver_fn(self) -> Callable[[], ServingReceiver] | None:
        """A function that says what a request is; None if there is none."""
        return None

    # What the trainer asks a task for.

    @property
    def name(self) -> str:
        """Return the name of the task."""
        return str(self.p.name)

    @property
    def features(self) -> Sequence[Feature]:  # type: ignore[override]
        """Return the features of the columns that the model function makes."""
        return self._collect().features

    @property
    def label(self) -> str | Sequence[str]:  # type: ignore[override]
        """`train.label_key`, if batches have such a column."""
        return self._collect().label

    def source(self, mode: Mode) -> Iterator[Batch]:
        """Batches of the input function."""
        slots = self._collect() if mode == Mode.TRAIN else None
        if slots is not None and slots.opened is not None:
            opened, slots.opened = slots.opened, None
        else:
            opened = iter(self.create_input_fn(mode)())
        key = self.p.train.label_key
        return (as_batch(columns, key) for columns in opened)

    def build(self) -> torch.nn.Module:
        """The modules of the task, by the names of their attributes.

        Raises:
            ValueError: a parameter is an attribute by itself.
        """
        modules = {}
        for name, value in vars(self).items():
            if isinstance(value, torch.nn.Parameter):
                raise ValueError(
                    f"[NativeTask] expected parameters inside of modules, got one as attribute "
                    f"{name!r} (task {self.name!r})"
                )
            if isinstance(value, torch.nn.Module):
                modules[name] = value
        return torch.nn.ModuleDict(modules)

    def loss(
        self, model: torch.nn.Module, inputs: Inputs, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and prediction of the model function; with gradients that it handed in."""
        mode = Mode.TRAIN if model.training else Mode.EVAL
        spec, factory = self._called(mode, inputs.pooled, batch)
        if spec.loss is None:
            raise ValueError(
                f"[NativeTask] expected a loss in mode {mode}, got None (task {self.name!r})"
            )
        loss = spec.loss
        if mode == Mode.TRAIN and spec.train_op is not None:
            for action in [spec.train_op] if callable(spec.train_op) else spec.train_op:
                action()
            loss = with_gradients(loss, factory.taken)
        if factory.has_left:
            raise ValueError(
                "[NativeTask] expected the action of apply_embedding_gradients in train_op, got "
                f"gradients whose action was not called (task {self.name!r})"
            )
        return loss, _joined(spec.predictions)

    def predict(self, model: torch.nn.Module, inputs: Inputs, batch: Batch) -> torch.Tensor:
        """Predictions of the model function."""
        return _joined(self._called(Mode.PREDICT, inputs.pooled, batch)[0].predictions)

    def hooks(self) -> Sequence[Hook]:
        """Return the hooks of the task's tables, the model function, and what it puts off."""
        collected = self._collect()
        tables = queue_hooks_of(vars(self).values())
        return [*tables, *collected.hooks, *self._functions.hooks]

    def _called(
        self, mode: Mode, embedded: Embedded, batch: Batch
    ) -> tuple[ModelSpec, "_StepFactory"]:
        factory = _StepFactory(self._collect().tables, embedded)
        self.ctx.feature_factory = factory
        self._functions.begin_call()
        return self.create_model_fn()(_columns(batch), mode, None), factory

    def _collect(self) -> "_Collected":
        """Call the model function once, and return the slots that it makes."""
        if self._collected is None:
            opened = iter(self.create_input_fn(Mode.TRAIN)())
            first = next(opened, None)
            if first is None:
                raise ValueError(
                    "[NativeTask] expected at least one batch of create_input_fn('train'), got "
                    f"none (task {self.name!r})"
                )
            batch = as_batch(first, self.p.train.label_key)
            factory = CollectingFactory(len(batch), device="cpu")
            self.ctx.feature_factory = factory
            self._functions.begin_call(is_first=True)
            spec = self.create_model_fn()(_columns(batch), Mode.TRAIN, None)
            tables = factory.tables()
            self._collected = _Collected(
                tables,
                features_of(tables.values()),
                tuple(batch.labels),
                list(spec.training_hooks),
                itertools.chain([first], opened),  # the batch is trained all the same
            )
        return self._collected


class _Collected:
    """Hold the slots of a model function, and the data that were opened to find them."""

    def __init__(
        self,
        tables: dict[str, SlotTable],
        features: list[Feature],
        label: Sequence[str],
        hooks: list[Hook],
        opened: Iterator[Columns | Batch],
    ) -> None:
        self.tables, self.features, self.label, self.hooks = tables, features, label, hooks
        self.opened: Iterator[Columns | Batch] | None = opened


class _StepFactory(FeaturesFactory):
    """Keeps gradients until their action is called; then the trainer's backward brings them."""

    def __init__(self, tables: Mapping[str, SlotTable], embedded: Embedded) -> None:
        super().__init__(tables, embedded)
        self.taken: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._num_left = 0

    @property
    def has_left(self) -> bool:
        """Whether an action was not called."""
        return self._num_left > 0

    def apply_gradients(self, grads_and_vars: GradsAndVars, scale: float = 1) -> Action:
        """The action that hands the gradients in."""
        pairs = [(g * scale, rows) for g, rows in grads_and_vars if g is not None]
        self._num_left += 1

        def hand_in() -> None:
            self._num_left -= 1
            self.taken += pairs

        return hand_in


def as_batch(columns: Columns | Batch, label_key: str) -> Batch:
    """A batch of columns by name: ids, the label, the time, and the rest as dense columns.

    Raises:
        TypeError: a column is neither a `Ragged` nor a tensor with a row for each sample.
    """
    if isinstance(columns, Batch):
        return columns
    ids: dict[str, Ragged] = {}
    dense: dict[str, torch.Tensor] = {}
    labels: dict[str, torch.Tensor] = {}
    for name, value in columns.items():
        if isinstance(value, Ragged):
            ids[name] = value
        elif isinstance(value, torch.Tensor) and value.dim():
            (labels if name == label_key else dense)[name] = value
        else:
            raise TypeError(
                "[NativeTask] expected columns as Ragged or as tensors with a row for each "
                f"sample, got {type(value).__name__} in {name!r}"
            )
    return Batch(ids, dense, labels, time=dense.get("req_time"))


def _columns(batch: Batch) -> dict[str, Any]:
    """All columns of a batch by name."""
    columns: dict[str, Any] = {**batch.features, **batch.dense, **batch.labels}
    if batch.time is not None:
        columns["req_time"] = batch.time
    return columns


def _joined(predictions: torch.Tensor | Mapping[str, torch.Tensor] | None) -> torch.Tensor:
    """Predictions of several heads side by side."""
    if isinstance(predictions, torch.Tensor):
        return predictions
    if not predictions:
        raise ValueError("[NativeTask] expected predictions, got none")
    heads = list(predictions.values())
    return heads[0] if len(heads) == 1 else torch.stack(heads, 1)
