"""Define `MonolithModel`: a `NativeTask` whose model function names features, not slots."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from monolith.data import Batch
from monolith.native_training.slots.combiners import Combiner
from monolith.native_training.slots.slots import DEFAULT_EXPIRE_TIME, FeatureColumn
from monolith.native_training.tasks.embedding_columns import (
    EmbeddingColumns,
    Name,
    combiner_of,
    joined,
    named_dims,
    share_slot,
)
from monolith.native_training.tasks.native_task import ModelSpec, NativeTask, ServingReceiver
from monolith.native_training.util.params import Params
from monolith.train.task import Mode

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
Heads = torch.Tensor | Mapping[str, torch.Tensor] | Sequence[torch.Tensor]


class EstimatorSpec(NamedTuple):
    """Hold the results of the model function of a `MonolithModel`.

    Attributes:
        label: of the samples, as `pred`.
        pred: predictions; by head if there are several.
        head_name: names of the heads.
        loss: a scalar; None in prediction.
        optimizer: of the dense model: a function of its parameters, or an optimizer.
        classification: whether predictions are probabilities.
    """

    label: Heads | None
    pred: Heads
    head_name: str | Sequence[str] | None = None
    loss: torch.Tensor | None = None
    optimizer: MakeOptimizer | torch.optim.Optimizer | None = None
    classification: bool = True


class MonolithModel(NativeTask):
    """A task with `input_fn` and `model_fn`, whose columns and slices have names.

    Args:
        params: made by `params`.
    """

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._default_dense_optimizer: MakeOptimizer | torch.optim.Optimizer | None = None
        self._spec: EstimatorSpec | None = None
        self._losses: list[torch.Tensor] = []
        self._columns = EmbeddingColumns(self.ctx)

    @abstractmethod
    def input_fn(self, mode: Mode) -> Iterable[Mapping[str, Any] | Batch]:
        """Batches, as those of `NativeTask.create_input_fn`."""

    @abstractmethod
    def model_fn(
        self, features: dict[str, Any], mode: Mode
    ) -> EstimatorSpec | tuple[Heads, torch.Tensor, Heads]:
        """An `EstimatorSpec`, or label, loss and prediction."""

    def serving_input_receiver_fn(self) -> ServingReceiver | None:
        """Describe a request; None if there is none."""
        return None

    def create_input_fn(self, mode: Mode) -> Callable[[], Iterable[Mapping[str, Any] | Batch]]:
        """`input_fn`."""
        return lambda: self.input_fn(mode)

    def create_serving_input_receiver_fn(self) -> Callable[[], ServingReceiver] | None:
        """`serving_input_receiver_fn`, if it gives something."""
        receiver = self.serving_input_receiver_fn()
        return None if receiver is None else lambda: receiver

    def create_model_fn(self) -> Callable[[dict[str, Any], Mode, Any], ModelSpec]:
        """`model_fn`, with columns of its own for each call."""
        return self._call

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer | None:
        """That of the spec, or the default of the task.

        Raises:
            Exception: there is neither.
        """
        parameters = list(model.parameters())
        if not parameters:
            return None
        _ = self.features  # the model function has been called then
        optimizer = (self._spec and self._spec.optimizer) or self._default_dense_optimizer
        if optimizer is None:
            raise Exception("dense_optimizer not found!")
        return optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer(parameters)

    def add_loss(self, losses: torch.Tensor | Sequence[torch.Tensor]) -> None:
        """Add to the loss of this call of the model function."""
        self._losses += [losses] if isinstance(losses, torch.Tensor) else losses

    def create_embedding_feature_column(
        self,
        feature_name: Name,
        occurrence_threshold: int | None = None,
        expire_time: int = DEFAULT_EXPIRE_TIME,
        max_seq_length: int = 0,
        shared_name: str | None = None,
        combiner: Combiner | str | None = None,
    ) -> FeatureColumn:
        """The column of a feature, made by the first call that names it.

        Args:
            feature_name: name, number of a slot (its name is `fc_slot_<n>` then), or column.
            occurrence_threshold: occurrences before an id gets a row.
            expire_time: days that a row lives after its last update.
            max_seq_length: keeps so many first rows apart, if it is above 0.
            shared_name: of the feature whose slot it uses.
            combiner: "reduce_sum", "reduce_mean", "first_n", or an object.

        Raises:
            ValueError: there is no such combiner.
            Exception: the slot that it shares cannot be made.
        """
        return self._columns.column(
            feature_name,
            combiner=combiner_of(combiner, max_seq_length),
            occurrence_threshold=occurrence_threshold,
            expire_time=expire_time,
            shared_name=shared_name,
        )

    def lookup_embedding_slice(
        self,
        features: Any,
        slice_name: str,
        slice_dim: int | None = None,
        initializer: Any = None,
        optimizer: Any = None,
        compressor: Any = None,
        learning_rate_fn: Any = None,
        group_out_type: str = "add_n",
        out_type: str | None = None,
    ) -> Any:
        """Slices of features, which have the same columns of a row for the same name.

        Args:
            features: names, numbers of slots or columns, with `slice_dim`; pairs of them and a
                width, or a dictionary; or lists of them (groups), with `slice_dim`.
            slice_name: of the slice.
            slice_dim: its width.
            initializer: of the slice; that of the slot if None, as the next three.
            optimizer: of the slice.
            compressor: of the slice.
            learning_rate_fn: of the slice.
            group_out_type: how the features of a group are joined, "add_n" or "concat".
            out_type: "concat", "stack" and "add_n" make one tensor; a list if None.

        Raises:
            ValueError: features of another form, or an unknown type of output.
        """
        options = {
            "initializer": initializer,
            "optimizer": optimizer,
            "compressor": compressor,
            "learning_rate_fn": learning_rate_fn,
        }
        parts = []
        for names, dim in named_dims(features, slice_dim):
            slices = [self._columns.lookup(name, slice_name, dim, options) for name in names]
            parts.append(slices[0] if len(slices) == 1 else joined(slices, group_out_type))
        return joined(parts, out_type)

    share_slot = staticmethod(share_slot)

    def _call(self, features: dict[str, Any], mode: Mode, config: Any) -> ModelSpec:
        self._columns, self._losses = EmbeddingColumns(self.ctx), []
        spec = self.model_fn(features, mode)
        if not isinstance(spec, EstimatorSpec):
            if not isinstance(spec, tuple) or len(spec) != 3:
                raise Exception("EstimatorSpec Error!")
            label, loss, pred = spec
            spec = EstimatorSpec(label, pred, loss=loss)
        self._spec = self._spec or spec
        predictions = self._heads(spec)
        if mode == Mode.PREDICT or spec.loss is None:
            return ModelSpec(mode, predictions)
        return ModelSpec(mode, predictions, sum(self._losses, spec.loss))

    def _heads(self, spec: EstimatorSpec) -> torch.Tensor | Mapping[str, torch.Tensor]:
        """Predictions by head."""
        if isinstance(spec.pred, torch.Tensor | Mapping):
            return spec.pred
        names = spec.head_name or self.p.metrics.deep_insight_target
        names = names.split(",") if isinstance(names, str) else list(names)
        labels = spec.pred if spec.label is None else spec.label
        if not len(names) == len(labels) == len(spec.pred):
            raise AssertionError(
                f"[MonolithModel] expected as many names and labels as predictions, got "
                f"{len(names)}, {len(labels)} and {len(spec.pred)} (task {self.name!r})"
            )
        return dict(zip(names, spec.pred, strict=True))
