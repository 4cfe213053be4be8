"""`CountedBatches`: every n-th batch of any iterable, with a position."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from monolith.data.batch import Batch
from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from typing_extensions import Self


class ShareBatches(Iterator[Batch], Protocol):
    """Iterator over the batches of a share. Not thread-safe."""

    def state_dict(self) -> Any:
        """Return the position after the last batch, as JSON."""

    def close(self) -> None:
        """Close files and stop threads."""

    def __enter__(self) -> "Self":
        """Return the iterator, which `with` closes."""

    def __exit__(self, *_: object) -> None: ...


class CountedBatches(Iterator[Batch]):
    """Batches index, index + count, ... of an iterable. Not thread-safe.

        position   batches: number of the next batch of the iterable
                   source: state of the iterable there, if it has `resume`

    Args:
        source: iterable that gives the same batches every time.
        index: number of the first batch.
        count: distance of two batches.
        position: result of `state_dict`; None begins at the start.
    """

    def __init__(
        self, source: Iterable[Batch], index: int, count: int, position: Any | None
    ) -> None:
        self._index, self._count = index, count
        self._number = 0 if position is None else int(position["batches"])
        if position is not None and "source" in position:
            self._batches: Any = source.resume(position["source"])  # type: ignore[attr-defined]
        else:
            self._batches = iter(source)
            self._skip()
        self._resumes = hasattr(source, "resume") and hasattr(self._batches, "state_dict")
        self._is_closed = False

    def _skip(self) -> None:
        num_skipped = sum(1 for _ in islice(self._batches, self._number))
        if num_skipped < self._number:
            self._close_batches()
            raise FailedPreconditionError(
                f"[Shares.open] expected a source of at least {self._number} batches, as when the "
                f"position was taken, got {num_skipped}; make the source as it was then"
            )

    def __next__(self) -> Batch:
        if self._is_closed:
            raise ValueError(
                "[Shares] expected an open iteration, got a closed one; open the share again at "
                "state_dict()"
            )
        while True:
            batch: Batch = next(self._batches)
            self._number += 1
            if (self._number - 1) % self._count == self._index:
                return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch, as JSON."""
        source = {"source": self._batches.state_dict()} if self._resumes else {}
        return {"batches": self._number, **source}

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the iteration; the position stays."""
        self._is_closed = True
        self._close_batches()

    def _close_batches(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
