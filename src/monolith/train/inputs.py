"""Bind a batch to a task: its columns, what `loss` receives, and what `loss` must return."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from monolith.data import Batch
from monolith.nn import Embedded
from monolith.ops import Ragged, RaggedColumns

if TYPE_CHECKING:
    from monolith.train.trainer import Trainer


_LARGEST = 2**53  # beyond it a number is an id: the hash of a text, as a rule


class TaskColumns:
    """Which columns a task takes as labels and as dense columns.

    A source that was not told takes whole numbers for ids and other numbers for dense columns.
    What a task names as label or dense is moved there; the rest stays.

    Args:
        labels: names.
        dense: names.
    """

    def __init__(self, labels: Sequence[str], dense: Sequence[str]) -> None:
        self.labels, self.dense = tuple(labels), tuple(dense)

    def bind(self, batch: Batch, *, with_labels: bool = True) -> Batch:
        """The batch with labels and dense columns where the task looks for them.

        Args:
            batch: of a source.
            with_labels: False for prediction: labels may be missing, and are bound if not.

        Raises:
            ValueError: a column is missing, or has not one number for each sample.
        """
        labels = [name for name in self.labels if with_labels or _has(batch, name)]
        is_bound = all(name in batch.labels for name in labels)
        if is_bound and all(name in batch.dense for name in self.dense):
            return batch
        found = {name: _numbers(batch, "label", name) for name in labels}
        dense = {name: _numbers(batch, "dense", name) for name in self.dense}
        moved = {*found, *dense}
        return replace(
            batch,
            features=_without(batch.features, moved),
            dense={**{k: v for k, v in batch.dense.items() if k not in moved}, **dense},
            labels={**{k: v for k, v in batch.labels.items() if k not in moved}, **found},
        )


def _without(features: Mapping[str, Ragged], names: Collection[str]) -> Mapping[str, Ragged]:
    if isinstance(features, RaggedColumns):
        return features.without(names)
    return {name: ids for name, ids in features.items() if name not in names}


def _has(batch: Batch, name: str) -> bool:
    return any(name in columns for columns in (batch.labels, batch.dense, batch.features))


def _numbers(batch: Batch, part: str, name: str) -> torch.Tensor:
    """A column as float32, wherever the source has put it."""
    for columns in (batch.labels, batch.dense):
        if name in columns:
            return columns[name]
    if name in batch.features:
        return _of_ids(part, name, batch.features[name])
    known = ", ".join([*batch.features, *batch.dense, *batch.labels])
    raise ValueError(f"[Task.{part}] expected column {name!r} in the batch, got {known}")


def _of_ids(part: str, name: str, ids: Ragged) -> torch.Tensor:
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
    """Embeddings and dense columns of a batch.

    Attributes:
        pooled: feature -> float32 (batch, dim); (batch, max_length, dim) with combiner "first".
            `pooled.joined` has all features side by side, (batch, width), without a copy.
        dense: float32 (batch, num_columns), the task's dense columns side by side; without any,
            of width 0.
    """

    def __init__(self, pooled: Embedded, dense: torch.Tensor) -> None:
        self.pooled = pooled
        self.dense = dense


def dense_matrix(batch: Batch, names: Iterable[str]) -> torch.Tensor:
    """The columns side by side, float32 (batch, num_columns).

    Raises:
        ValueError: the batch has no such column.
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
    column = dense[name]
    return column.unsqueeze(1) if column.dim() == 1 else column


def outputs_of(
    trainer: "Trainer", inputs: Inputs, batch: Batch, *, is_training: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and prediction of a batch, if they are what `Task.loss` promises.

    Args:
        trainer: has task and model.
        inputs: of the batch.
        batch: with labels.
        is_training: the loss needs a gradient.

    Raises:
        TypeError: `Task.loss` gives no pair of tensors.
        ValueError: the loss is not one number or has no gradient, or the prediction has no rows.
        RuntimeError: `Task.loss` raised StopIteration, which would end the run like its data.
    """
    try:
        given = trainer.task.loss(trainer.model, inputs, batch)
    except StopIteration as error:
        raise RuntimeError("[Task.loss] expected a loss, got StopIteration") from error
    return _checked(given, is_training)


def _checked(given: Any, is_training: bool) -> tuple[torch.Tensor, torch.Tensor]:
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    if not is_pair or not all(isinstance(each, torch.Tensor) for each in given):
        got = f"({', '.join(type(each).__name__ for each in given)})" if is_pair else _kind(given)
        raise TypeError(f"[Task.loss] expected loss and prediction, two tensors, got {got}")
    loss, prediction = given
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


def _kind(given: Any) -> str:
    number = f" of {len(given)}" if isinstance(given, tuple | list) else ""
    return f"{type(given).__name__}{number}"
