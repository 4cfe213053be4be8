"""`Batch`: the samples of one step as tensors."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monolith.ops import Ragged, RaggedColumns
from monolith.ops.ragged_columns import refuse_left_out

_Move = Callable[[torch.Tensor], torch.Tensor]


class TensorColumns(dict[str, torch.Tensor]):
    """Tensors by column; a column that a source has and did not read is refused, not missing.

    Args:
        columns: tensors by name.
        left_out: names of the columns that were not read.
    """

    def __init__(self, columns: Mapping[str, torch.Tensor], left_out: frozenset[str]) -> None:
        super().__init__(columns)
        self.left_out = left_out

    def __missing__(self, name: str) -> torch.Tensor:
        refuse_left_out(name, self.left_out)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        refuse_left_out(name, self.left_out)
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a tensor, or the default for a column that the source does not have."""
        refuse_left_out(name, self.left_out)
        return super().get(name, default)


def with_columns(
    old: Mapping[str, torch.Tensor], columns: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return tensors that replace those of `old`, and refuse the names that `old` refuses."""
    return TensorColumns(columns, old.left_out) if isinstance(old, TensorColumns) else columns


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples of one step, column by column: ids, dense columns, labels, weights and times.

        features   {"user": [[7], [9]], "history": [[3, 1], []]}    # Ragged, int64; a pipeline
                                                                    # gives RaggedColumns
        dense      {"price": [0.5, 2.0]}                            # float32 (n,) or (n, width)
        labels     {"click": [1., 0.]}                              # float32 (n,) or (n, width)
        weight     [1., 1.]                                         # float32 (n,), or None
        time       [1700000000, 1700000003]                         # int64 (n,), or None
        event_time 1700000003.25                                    # of a stream, or None

    The event time of a batch is that of its newest sample, in seconds since 1970: when the sample
    happened, as the stream or its column of times says, and not when it was read.

    Every column has a row for each of the n samples; the constructor checks this. A batch is a
    pytree, so `torch.utils._pytree.tree_map` and the pinning of a `DataLoader` reach its tensors.

    Raises:
        ValueError: two columns have different numbers of samples, or there is no column.

    Example:
        >>> batch = Batch({"user": Ragged.from_lists([[7], [9]])}, labels={"click": torch.ones(2)})
        >>> len(batch), batch.label
        (2, tensor([1., 1.]))
    """

    features: Mapping[str, Ragged] = field(default_factory=dict)
    dense: Mapping[str, torch.Tensor] = field(default_factory=dict)
    labels: Mapping[str, torch.Tensor] = field(default_factory=dict)
    weight: torch.Tensor | None = None
    time: torch.Tensor | None = None
    event_time: float | None = None

    def __post_init__(self) -> None:
        sizes = self._sizes()
        if not sizes:
            raise ValueError("[Batch] expected at least one column, got none")
        (first, expected), *others = sizes.items()
        for name, size in others:
            if size != expected:
                raise ValueError(
                    f"[Batch] expected {expected} samples in every column, as in {first!r}, got "
                    f"{size} in {name!r}"
                )

    def _sizes(self) -> dict[str, int]:
        sizes: dict[str, int]
        if isinstance(self.features, RaggedColumns):
            sizes = dict.fromkeys(list(self.features)[:1], self.features.num_rows)  # all have it
        else:
            sizes = {name: column.num_rows for name, column in self.features.items()}
        sizes |= {
            name: column.shape[0] for name, column in (*self.dense.items(), *self.labels.items())
        }
        extra = {"weight": self.weight, "time": self.time}
        return sizes | {
            name: column.shape[0] for name, column in extra.items() if column is not None
        }

    def __len__(self) -> int:
        if isinstance(self.features, RaggedColumns):
            return self.features.num_rows
        for ids in self.features.values():
            return ids.num_rows
        return next(iter(self._sizes().values()))

    @property
    def label(self) -> torch.Tensor:
        """Label column of a batch with a single label.

        Raises:
            ValueError: the batch has no label, or several; take one of `labels` by name.
        """
        if len(self.labels) != 1:
            raise ValueError(
                f"[Batch.label] expected one label, got {sorted(self.labels) or 'none'}; take one "
                "of batch.labels by its name, or name the label where the source is made"
            )
        return next(iter(self.labels.values()))

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the samples on another device."""
        return self._map(
            lambda tensor: tensor.to(device, non_blocking=non_blocking),
            lambda ids: ids.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> "Batch":
        """Return a copy in page-locked memory; `DataLoader(pin_memory=True)` calls this method."""
        return self._map(torch.Tensor.pin_memory, lambda ids: ids.pin_memory())

    def _map(self, move: _Move, move_ids: Callable[[Any], Any]) -> "Batch":
        features = self.features
        return Batch(
            move_ids(features)
            if isinstance(features, RaggedColumns)
            else {name: move_ids(column) for name, column in features.items()},
            with_columns(self.dense, {name: move(part) for name, part in self.dense.items()}),
            with_columns(self.labels, {name: move(part) for name, part in self.labels.items()}),
            None if self.weight is None else move(self.weight),
            None if self.time is None else move(self.time),
            self.event_time,
        )


def _flatten(batch: Batch) -> tuple[list[object], float | None]:
    columns: list[object] = [batch.features, batch.dense, batch.labels, batch.weight, batch.time]
    return columns, batch.event_time


def _unflatten(leaves: Iterable[Any], event_time: float | None) -> Batch:
    batch = object.__new__(Batch)  # `tree_map` may return leaves of any type
    names = ("features", "dense", "labels", "weight", "time")
    for name, leaf in zip(names, leaves, strict=True):
        object.__setattr__(batch, name, leaf)
    object.__setattr__(batch, "event_time", event_time)
    return batch


pytree.register_pytree_node(Batch, _flatten, _unflatten, serialized_type_name="monolith.data.Batch")
pytree.register_pytree_node(
    TensorColumns,
    lambda columns: (list(columns.values()), (tuple(columns), tuple(sorted(columns.left_out)))),
    lambda leaves, names: TensorColumns(
        dict(zip(names[0], leaves, strict=True)), frozenset(names[1])
    ),
    serialized_type_name="monolith.data.TensorColumns",
)
