"""Gives the columns of a batch the parts that a task names: labels and dense columns."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch

from monolith.data import Batch
from monolith.ops import Ragged, RaggedColumns

__all__ = ["TaskColumns"]

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
