"""Give a native task what the accelerator runner decides of its embeddings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from monolith.native_training.slots.slots import FeatureSlotConfig
from monolith.native_training.tasks.native_task import ModelSpec, NativeTask
from monolith.nn import Feature
from monolith.optim import Optimizer
from monolith.table import Adagrad
from monolith.table.optimizers import Optimizer as RowOptimizer
from monolith.train.task import Mode

_SLOT_OPTIMIZER = FeatureSlotConfig(name="any").default_vec_optimizer


@dataclass(frozen=True)
class EmbeddingSpec:
    """Say how the rows of a task are trained on an accelerator.

    Attributes:
        features: Names of the features.
        partition_strategy: Which rank has the row of a key, "mod" or "div", as `RankTables` has it;
            one process has all rows.
        is_pipelined: Whether rows are looked up while the step before is trained.
        gradient_multiplier: Factor of the gradients of rows.
        optimizer: Optimizer of slices whose slot names none.
    """

    features: Sequence[str]
    partition_strategy: str
    is_pipelined: bool = False
    gradient_multiplier: float = 1.0
    optimizer: RowOptimizer = field(default_factory=lambda: Adagrad(1.0))


def embedding_spec(
    task: NativeTask, partition_strategy: str, *, is_pipelined: bool
) -> EmbeddingSpec | None:
    """Return how the rows of a task are trained; None for a task without slots.

    The gradient multiplier is the parameter, or the attribute, `gradient_multiplier` of the task.
    """
    names = [feature.name for feature in task.features]
    if not names:
        return None
    factor = getattr(task, "gradient_multiplier", 1.0)
    if "gradient_multiplier" in task.p:
        factor = task.p.gradient_multiplier
    return EmbeddingSpec(names, partition_strategy, is_pipelined, float(factor))


class AcceleratedTask(NativeTask):
    """A native task whose rows are trained by an `EmbeddingSpec`; see `accelerated`.

    Attributes:
        embedding: How the rows are trained; None for a task without slots.
        is_cpu_test: Whether features are preprocessed.
    """

    embedding: EmbeddingSpec | None
    is_cpu_test: bool

    @property
    def features(self) -> Sequence[Feature]:  # type: ignore[override]
        """Return the features of the task, with the optimizer of the spec where none is named."""
        features = super().features
        spec = self.embedding
        return features if spec is None else [_with_optimizer(f, spec.optimizer) for f in features]

    def change_gradients(self, optimizer: Optimizer, step: int) -> None:
        """Multiply the gradients of rows; then change gradients as the task does."""
        factor = 1.0 if self.embedding is None else self.embedding.gradient_multiplier
        for queue in optimizer.queues if factor != 1 else ():
            if queue.anchor.grad is not None:
                queue.anchor.grad.mul_(factor)
        super().change_gradients(optimizer, step)

    def create_model_fn(self) -> Callable[[Any, Mode, Any], ModelSpec]:
        """Return the model function of the task, in a CPU test after its preprocessing."""
        model_fn = super().create_model_fn()  # type: ignore[safe-super]
        preprocess = getattr(self, "process_features_for_cpu_test", None)
        if not self.is_cpu_test or preprocess is None:
            return model_fn
        return lambda features, mode, config: model_fn(preprocess(features), mode, config)


def accelerated(task: NativeTask, *, is_cpu_test: bool) -> AcceleratedTask:
    """Return a task, with the same attributes, whose `embedding` may be set.

    Args:
        task: Task, which is not used afterwards.
        is_cpu_test: Whether `process_features_for_cpu_test` of the task, if there is one, changes
            the features of each call of the model function.
    """
    kind = type(task)
    cls: type[AcceleratedTask] = type(f"Accelerated{kind.__name__}", (AcceleratedTask, kind), {})
    made: AcceleratedTask = object.__new__(cls)
    made.__dict__ = task.__dict__
    made.embedding, made.is_cpu_test = None, is_cpu_test
    return made


def _with_optimizer(feature: Feature, optimizer: RowOptimizer) -> Feature:
    slices = [
        replace(part, optimizer=optimizer) if part.optimizer == _SLOT_OPTIMIZER else part
        for part in feature.slices
    ]
    return replace(feature, slices=slices) if feature.slices else feature
