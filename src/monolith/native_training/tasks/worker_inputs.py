"""Divide the training data of a job by workers: each calls the input function at its place."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from monolith.data import Batch
from monolith.data.shares.counted_batches import CountedBatches
from monolith.native_training.tasks import task_context
from monolith.native_training.tasks.task_context import NativeTaskContext

_NAME = re.compile(r"worker (\d+) of (\d+)")

Open = Callable[[bool], Iterable[Batch]]
"""Whether the data are those of this process -> the data of the worker of the context."""


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
