"""The data of an input function: as batches, and divided by the workers of a job."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from monolith.data import Batch
from monolith.data.shares.counted_batches import CountedBatches
from monolith.native_training.tasks import task_context
from monolith.native_training.tasks.task_context import NativeTaskContext
from monolith.ops import Ragged

_ELEMENT = "__element"  # column of a batch whose input function yields no columns
_NAME = re.compile(r"worker (\d+) of (\d+)")

Columns = Mapping[str, Any]
"""Columns of a batch by name: ids as `Ragged`, the rest as tensors."""

Convert = Callable[[Columns | Batch], Batch]
"""What an input function yields -> a batch."""

Open = Callable[[bool], Iterable[Batch]]
"""Whether the data are those of this process -> the data of the worker of the context."""


class InputBatches(Iterator[Batch]):
    """Iterates over the batches of an input function, and knows their source position."""

    def __init__(self, inner: Iterator[Columns | Batch], convert: Convert) -> None:
        self._inner, self._convert = inner, convert
        if hasattr(inner, "state_dict"):
            self.state_dict = inner.state_dict
        if hasattr(inner, "close"):
            self.close = inner.close

    def __next__(self) -> Batch:
        return self._convert(next(self._inner))


class InputData:
    """The batches of an input function whose data can resume."""

    def __init__(self, data: Any, convert: Convert) -> None:
        self._data, self._convert = data, convert

    def __iter__(self) -> Iterator[Batch]:
        return InputBatches(iter(self._data), self._convert)

    def resume(self, position: Any) -> Iterator[Batch]:
        """Return the batches after a position."""
        return InputBatches(self._data.resume(position), self._convert)


def as_batch(columns: Columns | Batch, label_key: str) -> Batch:
    """Return the batch of columns by name: ids, label, time, and the rest as dense columns.

    A number or a tensor without a name is a batch of one sample, which model functions receive as
    it is.

    Raises:
        TypeError: a column is neither a `Ragged` nor a tensor with a row for each sample.
    """
    if isinstance(columns, Batch):
        return columns
    if isinstance(columns, torch.Tensor | bool | int | float):
        return Batch(dense={_ELEMENT: torch.as_tensor(columns)[None]})
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


def columns_of(batch: Batch) -> Any:
    """Return what `as_batch` was given, as a model function receives it."""
    if _ELEMENT in batch.dense:
        return batch.dense[_ELEMENT][0]
    columns: dict[str, Any] = {**batch.features, **batch.dense, **batch.labels}
    if batch.time is not None:
        columns["req_time"] = batch.time
    return columns


class WorkerInputs:
    """The training data of a job: those of each worker are a share, which another one can take.

    The input function finds its worker in `task_context.get()`, also where it is called for a
    worker that was lost.

    Args:
        open_data: Calls the input function.

    Attributes:
        num_epochs: 1, as an input function may begin anew itself.
    """

    num_epochs = 1

    def __init__(self, open_data: Open) -> None:
        self._open_data, self._context = open_data, task_context.get()

    def __iter__(self) -> Iterator[Batch]:
        context = self._context
        return self.open(_name(context.worker_index, context.num_workers), 0, None)

    def divide(self, num_workers: int) -> "WorkerInputs":
        """Return the shares, of which there is one for each worker of the context."""
        assert num_workers == self._context.num_workers
        return self

    def names(self, epoch: int = 0) -> list[str]:
        """Return the names of the shares, the same in each epoch."""
        count = self._context.num_workers
        return [_name(index, count) for index in range(count)]

    def open(self, name: str, epoch: int, position: Any) -> Iterator[Batch]:
        """Return the batches of a share, from its beginning or from a position on."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(
                f"[WorkerInputs.open] expected the share of a worker, such as {_name(0, 2)!r}, got "
                f"{name!r}; go on with a job of the same kind"
            )
        index, count = map(int, match.groups())
        place = self._context._replace(worker_index=index, num_workers=count)
        is_own = position is None and place == self._context
        with task_context.with_ctx(place):
            batches = CountedBatches(self._open_data(is_own), 0, 1, position)
        return _PlacedBatches(batches, place)


class _PlacedBatches(Iterator[Batch]):
    """Reads batches with a worker's place as the context, which a generator of the user may ask."""

    def __init__(self, batches: CountedBatches, place: NativeTaskContext) -> None:
        self._batches, self._place = batches, place
        self.state_dict, self.close = batches.state_dict, batches.close

    def __next__(self) -> Batch:
        with task_context.with_ctx(self._place):
            return next(self._batches)


def _name(index: int, count: int) -> str:
    return f"worker {index} of {count}"
