"""Define `MonolithBaseModel`: a task with heads, clipping, metrics and files of predictions."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from monolith.data import Batch
from monolith.native_training.tasks.input_data import Columns
from monolith.native_training.tasks.native_params import (
    MODEL_PARAMETERS,
    check_values,
    define_params,
)
from monolith.native_training.tasks.native_task import (
    ModelSpec,
    NativeTask,
    ServingReceiver,
)
from monolith.native_training.tasks.prediction_files import PredictionFile
from monolith.native_training.util.gradient_rules import clip_and_decay
from monolith.native_training.util.head_metrics import HeadMetric, LastFigure
from monolith.native_training.util.instantiable_params import InstantiableParams
from monolith.native_training.util.params import Params
from monolith.optim import Optimizer
from monolith.train.driver import Hook, current_run
from monolith.train.figures import Metric
from monolith.train.inputs import Inputs
from monolith.train.settings import TrainSettings
from monolith.train.task import Mode, Task

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
Heads = torch.Tensor | Mapping[str, torch.Tensor] | Sequence[torch.Tensor]

_LABEL = "__label__"  # prefix of the columns for the labels of heads
_ONE_EACH = ("KafkaMetricHook", "FileMetricHook")


class EstimatorSpec(NamedTuple):
    """Hold the results of the model function of a `MonolithModel`.

    Attributes:
        label: Labels of the samples, in the form of `pred`.
        pred: Predictions; by head if there are several heads.
        head_name: Names of the heads.
        loss: Loss, a scalar; None in prediction.
        optimizer: Function of the dense parameters that returns their optimizer, or an optimizer.
        classification: Whether predictions are probabilities.
    """

    label: Heads | None
    pred: Heads
    head_name: str | Sequence[str] | None = None
    loss: torch.Tensor | None = None
    optimizer: MakeOptimizer | torch.optim.Optimizer | None = None
    classification: bool = True


class ExtraOutput(NamedTuple):
    """Hold a further output of an exported model.

    Attributes:
        outputs: A tensor, or tensors by name.
        head_name: Name of its head.
        head_type: Kind of its head.
    """

    outputs: Any
    head_name: str | None = None
    head_type: str | None = None


class MonolithBaseModel(NativeTask):
    """Train a model that `input_fn` and `model_fn` define.

    Parameters are attributes too: `self.train.label_key`, `self.clip_norm`.

    Args:
        params: Parameters that `params` made.
    """

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        check_values(params, MODEL_PARAMETERS)
        self._default_dense_optimizer: MakeOptimizer | torch.optim.Optimizer | None = None
        self._spec: EstimatorSpec | None = None
        self._losses: list[torch.Tensor] = []
        self._hooks: list[Hook] = []
        self._extra_outputs: dict[str, ExtraOutput] = {}
        self._labels: dict[str, torch.Tensor] = {}  # of the last call, by head
        self._label_heads: tuple[str, ...] = ()  # heads that have a label
        self._norms: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        params = self.__dict__.get("p")
        if params is not None and name in params:
            return params[name]
        return super().__getattribute__(name)  # raises, in a property the error of the property

    def __setattr__(self, name: str, value: Any) -> None:
        params = self.__dict__.get("p")
        is_param = params is not None and name in params and not hasattr(type(self), name)
        if is_param and not isinstance(value, torch.nn.Module):
            self.p[name] = value
        else:
            super().__setattr__(name, value)

    @classmethod
    def params(cls) -> InstantiableParams:
        """Return the parameters of a `NativeTask`, and those of outputs, clipping and metrics."""
        params = super().params()
        define_params(params, MODEL_PARAMETERS)
        return params

    @abstractmethod
    def input_fn(self, mode: Mode) -> Iterable[Mapping[str, Any] | Batch]:
        """Open the data, and return batches as `NativeTask.create_input_fn` describes them."""

    @abstractmethod
    def model_fn(
        self, features: dict[str, Any], mode: Mode
    ) -> EstimatorSpec | tuple[Heads, torch.Tensor, Heads]:
        """Return an `EstimatorSpec`, or label, loss and prediction."""

    def serving_input_receiver_fn(self) -> ServingReceiver | None:
        """Describe a request; None if there is none."""
        return None

    def create_input_fn(self, mode: Mode) -> Callable[[], Iterable[Mapping[str, Any] | Batch]]:
        """Return a function that calls `input_fn`."""
        return lambda: self.input_fn(mode)

    def create_serving_input_receiver_fn(self) -> Callable[[], ServingReceiver] | None:
        """Return a function that returns the receiver of the task; None without a receiver."""
        receiver = self.serving_input_receiver_fn()
        return None if receiver is None else lambda: receiver

    def create_model_fn(self) -> Callable[[dict[str, Any], Mode, Any], ModelSpec]:
        """Return a function that calls `model_fn` and turns its result into a `ModelSpec`."""
        return self._call

    @property
    def batch_size(self) -> int | None:
        """Return the number of samples of a batch, that of evaluation if `mode` says so.

        An evaluation without a number of its own has that of the training.
        """
        sizes = self.p.eval.per_replica_batch_size, self.p.train.per_replica_batch_size
        size: int | None = sizes[0] if self.p.mode == Mode.EVAL and sizes[0] else sizes[1]
        return size

    @batch_size.setter
    def batch_size(self, value: int | None) -> None:
        self.p.eval.per_replica_batch_size = self.p.train.per_replica_batch_size = value

    def add_loss(self, losses: torch.Tensor | Sequence[torch.Tensor]) -> None:
        """Add to the loss of this call of the model function."""
        self._losses += [losses] if isinstance(losses, torch.Tensor) else losses

    def add_training_hook(self, hook: Hook) -> None:
        """Add a hook of the run; of Kafka and file metric hooks only the first of each counts."""
        kinds = _metric_kinds(hook)
        if not any(kinds & _metric_kinds(other) for other in self._hooks):
            self._hooks.append(hook)

    def add_extra_output(
        self, name: str, outputs: Any, head_name: str | None = None, head_type: str | None = None
    ) -> None:
        """Add an output of the exported model; a run that does not export leaves it out.

        Raises:
            KeyError: There is an output of this name.
        """
        run = current_run()
        if run is None or not run.is_exporting:
            return
        if name in self._extra_outputs:
            raise KeyError(f"key {name} exists!")
        self._extra_outputs[name] = ExtraOutput(outputs, head_name, head_type)

    # What the trainer asks a task for.

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer | None:
        """Return the optimizer of the spec, else the default optimizer of the task.

        Raises:
            Exception: there is neither.
        """
        parameters = list(model.parameters())
        if not parameters:
            return None
        self._collect()  # the model function has been called then
        optimizer = (self._spec and self._spec.optimizer) or self._default_dense_optimizer
        if optimizer is None:
            raise Exception("dense_optimizer not found!")
        return optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer(parameters)

    def train_settings(self, settings: TrainSettings) -> TrainSettings:
        """Return the options of a `NativeTask`; make the folder `output_path`.

        Raises:
            UnavailableError: No file can be written there.
        """
        if self.p.output_path is not None:
            self._prediction_file().prepare()
        return super().train_settings(settings)

    def change_gradients(self, optimizer: Optimizer, step: int) -> None:
        """Clip dense and sparse gradients to `clip_norm` by their global norm, then decay weights.

        `sparse_norm_warmup_steps` lets the bound of tables grow from 0.
        """
        with_norms = self.p.enable_grads_and_vars_summary
        norms = self._parameter_norms() if with_norms else {}
        norm = clip_and_decay(
            optimizer,
            step,
            clip_norm=self.p.clip_norm,
            sparse_norm_warmup_steps=self.p.sparse_norm_warmup_steps,
            weight_decay=self.p.dense_weight_decay,
        )
        if with_norms:
            self._norms = {"global_gradient_norm": norm, **norms}

    @property
    def label(self) -> str | Sequence[str]:  # type: ignore[override]
        """Return the label column; with native metrics a column for each head with a label."""
        if self.p.metrics.disable_native_metrics:
            return super().label
        self._collect()
        return tuple(_LABEL + head for head in self._label_heads)

    def _converted(self, columns: Columns | Batch) -> Batch:
        """Return the batch; with native metrics it has room for the labels of the heads."""
        batch = super()._converted(columns)
        if self.p.metrics.disable_native_metrics:
            return batch
        labels = {name: torch.zeros(len(batch)) for name in self.label}
        return replace(batch, labels={**batch.labels, **labels})

    def loss(
        self, model: torch.nn.Module, inputs: Inputs, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and prediction of the model function; labels of heads go into the batch."""
        outputs = super().loss(model, inputs, batch)
        if not self.p.metrics.disable_native_metrics:
            for head, label in self._labels.items():
                batch.labels[_LABEL + head].copy_(label.detach().reshape(-1))
        return outputs

    def metrics(self) -> Mapping[str, Metric]:
        """Return `<head>_auc` of each classification and `<head>_mse` of other heads.

        With `metrics.disable_native_metrics` these are the metrics of any other `Task`, for one
        classification. `enable_grads_and_vars_summary` adds the norms of the last step.
        """
        metrics: dict[str, Metric] = {}
        spec = self._spec
        if not self.p.metrics.disable_native_metrics and spec is not None:
            heads, labels = list(self._named(spec.pred, spec)), list(self._label_heads)
            kind = "auc" if spec.classification else "mse"
            metrics = {
                f"{head}_{kind}": HeadMetric(
                    (heads.index(head), len(heads)),
                    (labels.index(head), len(labels)),
                    is_classification=spec.classification,
                )
                for head in labels
            }
        elif spec is None or (spec.classification and len(self._named(spec.pred, spec)) == 1):
            metrics = dict(super().metrics())
        if self.p.enable_grads_and_vars_summary and self.p.mode == "train":
            names = [name for name, _ in self.build().named_parameters()]
            norms = [f"{kind}_norm/{name}" for name in names for kind in ("grad", "var")]
            for name in ("global_gradient_norm", *norms):
                metrics[name] = LastFigure(lambda name=name: self._norms.get(name))  # type: ignore[misc]
        return metrics

    @classmethod
    def has_default_metrics(cls) -> bool:
        """Whether the task does not override `metrics`, so that its metrics may not fit."""
        return cls.metrics in (MonolithBaseModel.metrics, Task.metrics)

    def _begin_call(self) -> None:
        """Forget what the last call of the model function added."""
        self._losses, self._hooks, self._extra_outputs = [], [], {}

    def _call(self, features: dict[str, Any], mode: Mode, config: Any) -> ModelSpec:
        self._begin_call()
        features = {k: value for k, value in features.items() if not k.startswith(_LABEL)}
        spec = self.model_fn(features, mode)
        if not isinstance(spec, EstimatorSpec):
            if not isinstance(spec, tuple) or len(spec) != 3:
                raise Exception("EstimatorSpec Error!")
            label, loss, pred = spec
            spec = EstimatorSpec(label, pred, loss=loss)
        predictions = self._heads(spec)
        self._labels = {} if spec.label is None else self._named(spec.label, spec)
        if self._spec is None:
            self._spec, self._label_heads = spec, tuple(self._labels)
        if mode != Mode.TRAIN and self.p.output_path is not None and not _is_exporting():
            self._prediction_file().write(features, predictions)
        hooks, extra = tuple(self._hooks), dict(self._extra_outputs)
        if mode == Mode.PREDICT or spec.loss is None:
            return ModelSpec(mode, predictions, training_hooks=hooks, export_outputs=extra)
        if mode == Mode.TRAIN and self._labels:
            of_heads = self._named(spec.pred, spec)
            labelled = {head: of_heads[head] for head in self._labels}
            for send in self.deep_insight_actions(features, self._labels, labelled):
                send()
        loss = sum(self._losses, spec.loss)
        return ModelSpec(mode, predictions, loss, training_hooks=hooks, export_outputs=extra)

    def _prediction_file(self) -> PredictionFile:
        p = self.p
        return PredictionFile(p.output_path, p.output_fields, p.delimiter, p.file_name)

    def _heads(self, spec: EstimatorSpec) -> torch.Tensor | Mapping[str, torch.Tensor]:
        """Return predictions by head."""
        if isinstance(spec.pred, torch.Tensor | Mapping):
            return spec.pred
        names = self._head_names(spec)
        labels = spec.pred if spec.label is None else spec.label
        if not len(names) == len(labels) == len(spec.pred):
            raise AssertionError(
                f"[MonolithModel] expected as many names and labels as predictions, got "
                f"{len(names)}, {len(labels)} and {len(spec.pred)} (task {self.name!r})"
            )
        return dict(zip(names, spec.pred, strict=True))

    def _head_names(self, spec: EstimatorSpec) -> list[str]:
        names = spec.head_name or self.p.metrics.deep_insight_target
        return names.split(",") if isinstance(names, str) else list(names)

    def _named(self, heads: Heads, spec: EstimatorSpec) -> dict[str, torch.Tensor]:
        """Return predictions or labels by the name of their head."""
        if isinstance(heads, Mapping):
            return dict(heads)
        tensors = [heads] if isinstance(heads, torch.Tensor) else heads
        return dict(zip(self._head_names(spec), tensors, strict=False))

    def _parameter_norms(self) -> dict[str, float]:
        """Return the norms of the dense parameters and of their gradients by name."""
        norms = {}
        for name, parameter in self.build().named_parameters():
            norms[f"var_norm/{name}"] = float(parameter.detach().norm())
            gradient = parameter.grad
            norms[f"grad_norm/{name}"] = 0.0 if gradient is None else float(gradient.norm())
        return norms


def _is_exporting() -> bool:
    run = current_run()
    return run is not None and run.is_exporting


def _metric_kinds(hook: Hook) -> set[str]:
    return {cls.__name__ for cls in type(hook).__mro__} & set(_ONE_EACH)
