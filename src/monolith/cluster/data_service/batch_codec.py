"""Write a `Batch` as a value of the wire, and read one that came from a data worker."""

from collections.abc import Mapping
from typing import Any

import torch

from monolith.data.batch import Batch, TensorColumns
from monolith.errors import InvalidArgumentError
from monolith.ops import Ragged, RaggedColumns
from monolith.ops.ragged_columns import ColumnNames

_FIELDS = frozenset(
    {"names", "ids", "row_splits", "ragged", "dense", "labels", "weight", "time", "left_out"}
)


def batch_to_value(batch: Batch) -> dict[str, Any]:
    """Return the batch as names, tensors and texts, without a copy of large tensors.

        names, ids, row_splits   features that lie in two tensors (`RaggedColumns`)
        ragged                   other features, name -> (values, row_splits)
        dense, labels            name -> tensor
        weight, time             tensor or None
        left_out                 names of columns that the source did not read

    Example:
        >>> batch = Batch({"user": Ragged.from_lists([[7], [9]])}, labels={"click": torch.ones(2)})
        >>> batch_from_value(batch_to_value(batch)).features["user"].to_lists()
        [[7], [9]]
    """
    features, left_out = batch.features, set[str]()
    value: dict[str, Any] = {"names": [], "ids": None, "row_splits": None, "ragged": {}}
    if isinstance(features, RaggedColumns) and len(features):
        left_out |= features.names.left_out
        places = features.names.places
        if list(places.values()) != list(range(features.row_splits.shape[0])):
            features = RaggedColumns.from_ragged(features)  # some columns were taken out
        value |= {"names": list(features), "ids": features.ids, "row_splits": features.row_splits}
    else:
        value["ragged"] = {name: (ids.values, ids.row_splits) for name, ids in features.items()}
    for part, columns in (("dense", batch.dense), ("labels", batch.labels)):
        value[part] = dict(columns.items())
        left_out |= columns.left_out if isinstance(columns, TensorColumns) else set()
    return value | {"weight": batch.weight, "time": batch.time, "left_out": sorted(left_out)}


def batch_from_value(value: Any) -> Batch:
    """Return the batch of a value.

    Raises:
        InvalidArgumentError: The value is no batch.
    """
    try:
        return _batch_of(value)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise InvalidArgumentError(
            f"[data service] expected a batch of a data worker, got another value: {error}"
        ) from error


def _batch_of(value: Any) -> Batch:
    if type(value) is not dict or value.keys() != _FIELDS:
        raise ValueError("the fields are not those of a batch")
    left_out = frozenset(value["left_out"])
    features: Mapping[str, Ragged]
    if value["names"]:
        checked = RaggedColumns(value["names"], value["ids"], value["row_splits"])
        names = ColumnNames(checked.names.places, left_out)
        features = RaggedColumns._unchecked(names, checked.ids, checked.row_splits)
    else:
        features = {name: Ragged(*pair) for name, pair in value["ragged"].items()}
    for column in (value["weight"], value["time"]):
        if column is not None and not isinstance(column, torch.Tensor):
            raise TypeError(f"expected a tensor or None, got {type(column).__name__}")
    return Batch(
        features,
        _columns(value["dense"], left_out),
        _columns(value["labels"], left_out),
        value["weight"],
        value["time"],
    )


def _columns(columns: Any, left_out: frozenset[str]) -> Mapping[str, torch.Tensor]:
    if not all(isinstance(column, torch.Tensor) for column in columns.values()):
        raise TypeError("expected tensors by name")
    return TensorColumns(columns, left_out) if left_out else dict(columns)
