"""Define `NativeTask`: a task with a model function, which the trainer drives as any other.

Its model function is called once with a `CollectingFactory`, to see which slots it makes; then once
for each batch, over the rows that were looked up for it.
"""

import itertools
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from monolith.data import Batch
from monolith.errors import InvalidArgumentError
from monolith.native_training.metric.deep_insight_ops import Send, write_deep_insight
from monolith.native_training.metric.metric_hook import (
    FileMetricHook,
    RecordDump,
    ThroughputMetricHook,
)
from monolith.native_training.ops.layout_config import OutConfig
from monolith.native_training.queues.queue_hooks import queue_hooks_of
from monolith.native_training.saver.tide import CustomGlobalStepWaiterHook
from monolith.native_training.slots.layout_factories import (
    CollectingLayoutFactory,
    EmbeddingLayoutFactory,
)
from monolith.native_training.slots.slot_factories import GradsAndVars
from monolith.native_training.slots.slot_tables import SlotTable, features_of
from monolith.native_training.tasks import task_context
from monolith.native_training.tasks.context import Context
from monolith.native_training.tasks.input_data import (
    Columns,
    InputBatches,
    InputData,
    WorkerInputs,
    as_batch,
    columns_of,
)
from monolith.native_training.tasks.loss_gradients import with_gradients
from monolith.native_training.tasks.native_params import (
    PARAMETERS,
    check_params,
    native_params,
)
from monolith.native_training.tasks.step_functions import StepFunctions
from monolith.native_training.tasks.step_limit import StepLimitHook, slow_start_step
from monolith.native_training.tasks.task_settings import NativeSettings, set_params
from monolith.native_training.util.instantiable_params import InstantiableParams
from monolith.native_training.util.params import Params
from monolith.nn import Embedded, Feature
from monolith.train.driver import Hook
from monolith.train.inputs import Inputs
from monolith.train.profiling import ProfilerHook
from monolith.train.saves.checkpoint_hook import CheckpointHook
from monolith.train.settings import WAIT, TrainSettings
from monolith.train.task import Mode, Task

_PROFILE_STEPS = 5000  # between the beginnings of two traces

Action = Callable[[], Any]


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
        export_outputs: further outputs of an exported model, by name.
    """

    mode: Mode
    predictions: torch.Tensor | Mapping[str, torch.Tensor] | None = None
    loss: torch.Tensor | None = None
    train_op: Action | Sequence[Action] | None = None
    training_hooks: Sequence[Hook] = ()
    export_outputs: Mapping[str, Any] = MappingProxyType({})


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
        missing: what an id without a row reads as in training: zeros, as in the reference system.
        p: the parameters.
        ctx: makes slots, takes gradients, puts functions off.
        deep_insight_sink: receives each record of `deep_insight_actions` as text.
        profile_dir: folder for traces of 10 steps; None for none.
    """

    missing = "zeros"
    columns = None  # the model function receives all of them
    Settings = NativeSettings
    deep_insight_sink: Send | None = None
    profile_dir: str | None = None

    def __init__(self, params: Params) -> None:
        super().__init__()
        if not params.name:
            raise AssertionError(f'Layer params for {type(self).__name__} must have a "name"')
        check_params(params)
        self.p = params
        if params.mode != "train":
            self.missing = "zeros"  # as in each evaluation and prediction
        self._functions = StepFunctions()
        self.ctx = Context(async_functions=self._functions)
        self._collected: _Collected | None = None
        self._train_settings = TrainSettings()  # of the trainer, once there is one
        self._sends: list[Send] = []

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, torch.nn.Module) and hasattr(Task, name):
            raise ValueError(
                f"[NativeTask] expected a name for the module that a Task has no use for, got "
                f"{name!r} (class {type(self).__name__})"
            )
        super().__setattr__(name, value)

    @classmethod
    def params(cls) -> InstantiableParams:
        """Return the parameters with their defaults; `instantiate` makes the task."""
        return native_params(cls)

    @classmethod
    def from_settings(cls, settings: NativeSettings) -> "NativeTask":
        """Return a task with the parameters that the settings of the command line change."""
        task = cls(set_params(cls.params(), settings))
        task.settings = settings
        return task

    @abstractmethod
    def create_input_fn(self, mode: Mode) -> Callable[[], Iterable[Columns | Batch]]:
        """Return a function that opens the data: batches as dictionaries of `Ragged` and tensors.

        `req_time`, int64 seconds, is the time of a sample. A `Batch` is taken as it is.
        """

    @abstractmethod
    def create_model_fn(self) -> Callable[[dict[str, Any], Mode, Any], ModelSpec]:
        """Return a function of the columns of a batch, the mode and a config, which is None."""

    def create_serving_input_receiver_fn(self) -> Callable[[], ServingReceiver] | None:
        """Return a function that describes a request; None without one."""
        return None

    def deep_insight_actions(
        self,
        features: Mapping[str, Any],
        labels: torch.Tensor | Mapping[str, torch.Tensor],
        predictions: torch.Tensor | Mapping[str, torch.Tensor],
    ) -> list[Action]:
        """Return the action that sends records of a batch; none unless deep insight is enabled.

        The action belongs into `train_op`.

        Args:
            features: columns with `uid`, `req_time`, `sample_rate` and those of
                `metrics.extra_fields_keys`; without `req_time` nothing is sent.
            labels: (batch,); by head if there are several.
            predictions: the same of predictions.
        """
        metrics = self.p.metrics
        if not metrics.enable_deep_insight or metrics.deep_insight_sample_ratio <= 0:
            return []
        name, ratio = self.model_name, metrics.deep_insight_sample_ratio
        extra = list(metrics.extra_fields_keys)

        def send() -> None:
            if isinstance(predictions, Mapping) and isinstance(labels, Mapping):
                write_deep_insight(
                    features,
                    ratio,
                    name,
                    targets=list(predictions),
                    labels_list=[labels[head] for head in predictions],
                    preds_list=list(predictions.values()),
                    extra_fields_keys=extra,
                    send=self._send,
                )
            else:
                target = metrics.deep_insight_target
                pair = {"labels": labels, "preds": predictions, "target": target}
                write_deep_insight(
                    features, ratio, name, **pair, extra_fields_keys=extra, send=self._send
                )

        return [send]

    @property
    def model_name(self) -> str:
        """Return the name of the model in records and counters."""
        return self.p.metrics.deep_insight_name or f"di_name_{type(self).__name__}"

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
    def slot_tables(self) -> Sequence[SlotTable]:
        """Return the slots that the model function makes, with their slices and columns."""
        return list(self._collect().tables.values())

    @property
    def label(self) -> str | Sequence[str]:  # type: ignore[override]
        """Return `train.label_key` if batches have such a column, else no name."""
        return self._collect().label

    @property
    def evict_every_hours(self) -> Mapping[str, int]:  # type: ignore[override]
        """Return `feature_evict_every_n_hours` of the slots that have it, by table."""
        tables = self._collect().tables.values()
        return {name: hours for table in tables for name, hours in table.evict_every_hours.items()}

    def source(self, mode: Mode) -> Iterable[Batch]:
        """Return the batches of the input function; they can resume where those can.

        In a job each worker calls the function, and has a share of its own.
        """
        if mode == Mode.TRAIN and task_context.get().server_type == "worker":
            return WorkerInputs(self._training_data)
        if mode == Mode.TRAIN:
            return self._training_data(is_own=True)
        data = self.create_input_fn(mode)()
        return self._batches(
            itertools.islice(data, self._eval_steps()) if mode == Mode.EVAL else data
        )

    def _training_data(self, is_own: bool) -> Iterable[Batch]:
        """Return the training data; those that `_collect` has opened are of this process."""
        slots = self._collect()
        if is_own and slots.opened is not None:
            data, slots.opened = slots.opened, None
        else:
            data = self.create_input_fn(Mode.TRAIN)()
        if self.p.train.repeat:
            return map(self._converted, self._repeated(data))
        return self._batches(data)

    def _batches(self, data: Iterable[Columns | Batch]) -> Iterable[Batch]:
        if hasattr(data, "resume"):
            return InputData(data, self._converted)
        return InputBatches(iter(data), self._converted)

    def _converted(self, columns: Columns | Batch) -> Batch:
        """Return the batch of what the input function yields."""
        return self._as_batch(columns)

    def _as_batch(self, columns: Columns | Batch) -> Batch:
        """Return the same, before slots are known."""
        return as_batch(columns, self.p.train.label_key)

    def _columns_of(self, batch: Batch) -> Any:
        """Return what the model function receives of a batch."""
        return columns_of(batch)

    def _repeated(self, data: Iterable[Columns | Batch]) -> Iterator[Columns | Batch]:
        while True:
            num_batches = 0
            for num_batches, columns in enumerate(data, 1):  # noqa: B007
                yield columns
            if not num_batches:
                return
            data = self.create_input_fn(Mode.TRAIN)()

    def _eval_steps(self) -> int | None:
        """Return the number of batches of an evaluation; None reads all."""
        p = self.p
        if p.eval.steps is not None or p.input.eval_examples is None:
            return None if p.eval.steps is None else int(p.eval.steps)
        size = p.eval.per_replica_batch_size or p.train.per_replica_batch_size
        if not size:
            raise InvalidArgumentError(
                "[NativeTask] expected params.eval.per_replica_batch_size with "
                f"params.input.eval_examples={p.input.eval_examples}, got {size!r} (task "
                f"{self.name!r})"
            )
        return max(1, int(p.input.eval_examples) // int(size))

    def build(self) -> torch.nn.Module:
        """Return the modules of the task, by the names of their attributes.

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

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer | None:
        """Return the optimizer of the dense parameters.

        A task that has neither slots nor parameters, but actions, has one that changes nothing.
        """
        optimizer, slots = super().optimizer(model), self._collect()
        if optimizer is None and slots.has_actions and not slots.features:
            return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
        return optimizer

    def loss(
        self, model: torch.nn.Module, inputs: Inputs, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and prediction of the model function, with gradients that were handed in."""
        if model.training and self.p.mode != "train":
            return self._loss_without_training(model, inputs, batch)
        mode = Mode.TRAIN if model.training else Mode.EVAL
        spec, factory = self._called(mode, inputs.pooled, batch)
        loss = self._loss_of(spec)
        if mode == Mode.TRAIN and spec.train_op is not None:
            for action in [spec.train_op] if callable(spec.train_op) else spec.train_op:
                action()
            loss = with_gradients(loss, factory.taken)
        if factory.has_left:
            raise ValueError(
                "[NativeTask] expected the action of apply_embedding_gradients in train_op, got "
                f"gradients whose action was not called (task {self.name!r})"
            )
        is_empty = not isinstance(spec.predictions, torch.Tensor) and not spec.predictions
        if mode == Mode.TRAIN and is_empty:
            return loss, torch.empty(len(batch), 0)
        return loss, self._joined(spec)

    def _loss_without_training(
        self, model: torch.nn.Module, inputs: Inputs, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and prediction of mode "eval" or "infer"; backward reaches no gradient."""
        mode = Mode.EVAL if self.p.mode == "eval" else Mode.PREDICT
        model.eval()
        try:
            with torch.no_grad():
                spec, _ = self._called(mode, inputs.pooled, batch)
        finally:
            model.train()
        loss = self._loss_of(spec) if mode == Mode.EVAL else torch.zeros(())
        return with_gradients(loss, []), self._joined(spec)

    def _loss_of(self, spec: ModelSpec) -> torch.Tensor:
        if spec.loss is None:
            raise ValueError(
                f"[NativeTask] expected a loss in mode {spec.mode}, got None (task {self.name!r})"
            )
        return spec.loss

    def _joined(self, spec: ModelSpec) -> torch.Tensor:
        """Return the predictions, those of several heads side by side."""
        predictions = spec.predictions
        if isinstance(predictions, torch.Tensor):
            return predictions
        if not predictions:
            raise ValueError(
                f"[NativeTask] expected predictions in mode {spec.mode}, got none (task "
                f"{self.name!r}); only training needs none"
            )
        heads = list(predictions.values())
        return heads[0] if len(heads) == 1 else torch.stack(heads, 1)

    def predict(self, model: torch.nn.Module, inputs: Inputs, batch: Batch) -> torch.Tensor:
        """Return the predictions of the model function."""
        return self._joined(self._called(Mode.PREDICT, inputs.pooled, batch)[0])

    def train_settings(self, settings: TrainSettings) -> TrainSettings:
        """Return the options with those that the parameters ask for.

        Raises:
            InvalidArgumentError: Checkpoints are asked for, and there is no folder for them.
        """
        train, changes = self.p.train, dict[str, Any]()
        if self.p.accelerator == "tpu" and settings.device == "cpu":
            changes["device"] = "cuda"
        if self.p.eval.steps_per_eval != PARAMETERS["eval.steps_per_eval"].default:
            changes["eval_every"] = self.p.eval.steps_per_eval
        if self.p.mode != "train" or task_context.get().worker_index:
            changes["checkpoint_dir"] = None  # nothing changes, or the chief saves
        elif asked := [name for name, value in train.items() if "save_" in name and value]:
            if settings.checkpoint_dir is None:
                raise InvalidArgumentError(
                    f"[NativeTask] expected a folder for the checkpoints of params.train."
                    f"{asked[0]}={train[asked[0]]}, got none (task {self.name!r}); set "
                    "TrainSettings.checkpoint_dir, --checkpoints or model_dir"
                )
            changes["busy_save"] = WAIT  # as the reference's saver hooks, which leave no save out
            if train.save_checkpoints_steps is not None:
                changes.update(save_every=train.save_checkpoints_steps, save_seconds=None)
            if train.save_checkpoints_secs is not None:
                changes.update(save_every=None, save_seconds=train.save_checkpoints_secs)
        self._train_settings = replace(settings, **changes)
        return self._train_settings

    def hooks(self) -> Sequence[Hook]:
        """Return the hooks of tables, of parameters, of the model function, and of its queues."""
        collected = self._collect()
        parameters = [*self._limits(), *self._saves(), *self._counters(), *self._record_hooks()]
        tables = queue_hooks_of(vars(self).values())
        return [*tables, *parameters, *collected.hooks, *self._functions.hooks]

    def _limits(self) -> list[Hook]:
        train, hooks = self.p.train, list[Hook]()
        if self.p.mode != "train":
            return []
        if train.steps is not None or train.max_steps is not None:
            hooks.append(StepLimitHook(train.steps, train.max_steps))
        if train.slow_start_steps > 0:
            index = task_context.get().worker_index
            step = slow_start_step(train.slow_start_steps, index)
            hooks.append(CustomGlobalStepWaiterHook(step))
        return hooks

    def _saves(self) -> list[Hook]:
        steps = self.p.train.dense_only_save_checkpoints_steps
        seconds = self.p.train.dense_only_save_checkpoints_secs
        settings = self._train_settings
        if settings.checkpoint_dir is None or (steps is None and seconds is None):
            return []
        return [
            CheckpointHook(
                os.path.join(settings.checkpoint_dir, "dense_only"),
                every_steps=steps,
                every_seconds=seconds,
                is_dense_only=True,
                background=settings.background_saves,
                rate=settings.save_rate,
                busy=settings.busy_save,
            )
        ]

    def _counters(self) -> list[Hook]:
        hooks: list[Hook] = []
        if self.p.metrics.enable_throughput_hook:
            hooks.append(ThroughputMetricHook(self.model_name))
        if self.p.metrics.enable_tf2_profiler_hook and self.profile_dir is not None:
            hooks.append(ProfilerHook(self.profile_dir, save_steps=_PROFILE_STEPS))
        return hooks

    def _record_hooks(self) -> list[Hook]:
        """Make the files of records; refuse records that nothing receives."""
        metrics, hooks = self.p.metrics, list[FileMetricHook | RecordDump]()
        if metrics.enable_file_metrics:
            hooks.append(
                FileMetricHook(
                    metrics.file_base_name,
                    task_context.get().worker_index,
                    parse_fn=metrics.parse_fn,
                    key_fn=metrics.key_fn,
                    layout_fn=metrics.layout_fn,
                    file_ext=metrics.file_ext,
                )
            )
        if metrics.dump_filename:
            hooks.append(RecordDump(metrics.dump_filename))
        sinks = [self.deep_insight_sink] if self.deep_insight_sink is not None else []
        self._sends = [*sinks, *hooks]
        is_enabled = metrics.enable_deep_insight and metrics.deep_insight_sample_ratio > 0
        if is_enabled and not self._sends:
            raise InvalidArgumentError(
                "[NativeTask] expected a receiver of the records of "
                f"params.metrics.enable_deep_insight=True, got none (task {self.name!r}); set "
                "deep_insight_sink of the task, params.metrics.enable_file_metrics or "
                "params.metrics.dump_filename"
            )
        return [*hooks]

    def _send(self, record: str) -> None:
        for send in self._sends:
            send(record)

    def _called(
        self, mode: Mode, embedded: Embedded, batch: Batch
    ) -> tuple[ModelSpec, "_StepFactory"]:
        slots = self._collect()
        factory = _StepFactory(slots.tables, embedded, slots.layouts)
        self._use_factory(factory)
        self._functions.begin_call()
        return self.create_model_fn()(self._columns_of(batch), mode, None), factory

    def _use_factory(self, factory: CollectingLayoutFactory | EmbeddingLayoutFactory) -> None:
        """Let the context make slots, or with fused layouts slots and layouts, by a factory."""
        self.ctx.feature_factory = factory

    def _collect(self) -> "_Collected":
        """Call the model function once, and return the slots that it makes."""
        if self._collected is None:
            data = self.create_input_fn(Mode.TRAIN)()
            opened = iter(data)
            first = next(opened, None)
            if first is None:
                raise ValueError(
                    "[NativeTask] expected at least one batch of create_input_fn('train'), got "
                    f"none (task {self.name!r})"
                )
            batch = self._as_batch(first)
            factory = CollectingLayoutFactory(len(batch), device="cpu")
            self._use_factory(factory)
            self._functions.begin_call(is_first=True)
            spec = self.create_model_fn()(self._columns_of(batch), Mode.TRAIN, None)
            tables = factory.tables()
            self._collected = _Collected(
                tables,
                factory.layouts,
                features_of(tables.values()),
                tuple(batch.labels),
                list(spec.training_hooks),
                spec.train_op is not None,
                # The batch is trained all the same.
                data if hasattr(data, "resume") else itertools.chain([first], opened),
            )
        return self._collected


class _Collected:
    """Hold the slots of a model function, and the data that were opened to find them."""

    def __init__(
        self,
        tables: dict[str, SlotTable],
        layouts: dict[str, OutConfig],
        features: list[Feature],
        label: Sequence[str],
        hooks: list[Hook],
        has_actions: bool,
        opened: Iterable[Columns | Batch],
    ) -> None:
        self.tables, self.layouts, self.features = tables, layouts, features
        self.label, self.hooks, self.has_actions = label, hooks, has_actions
        self.opened: Iterable[Columns | Batch] | None = opened


class _StepFactory(EmbeddingLayoutFactory):
    """Keeps gradients until their action is called; then the trainer's backward brings them."""

    def __init__(
        self,
        tables: Mapping[str, SlotTable],
        embedded: Embedded,
        layouts: Mapping[str, OutConfig],
    ) -> None:
        super().__init__(tables, embedded, layouts)
        self.taken: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._num_left = 0

    @property
    def has_left(self) -> bool:
        """Whether an action is left that was not called."""
        return self._num_left > 0

    def apply_gradients(self, grads_and_vars: GradsAndVars, scale: float = 1) -> Action:
        """Return the action that hands the gradients in."""
        pairs = [(g * scale, rows) for g, rows in grads_and_vars if g is not None]
        self._num_left += 1

        def hand_in() -> None:
            self._num_left -= 1
            self.taken += pairs

        return hand_in
