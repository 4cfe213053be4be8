"""`Batches`: one iteration over a pipeline."""

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from monolith.data.arrivals import Arrivals
from monolith.data.batch import Batch
from monolith.data.batch_maker import BatchMaker
from monolith.data.cursor import SourceWait, State, WaitEndedError
from monolith.data.prefetch import BatchCopier, Prefetch, PrefetchedBatch

if TYPE_CHECKING:
    from typing_extensions import Self

    from monolith.data.pipeline import Pipeline

STATE_VERSION = 1

_log = logging.getLogger(__name__)


class Batches(Iterator[Batch]):
    """Iterator over the batches of one pass. Not thread-safe.

    `close`, `with` and the deletion of the last reference close its files and end its thread. If a
    batch fails, the next call tries the same batch again; no batch is skipped.

    A stream that has nothing is waited for. An `on_wait` that raises `WaitEndedError` ends the
    iteration there; a later call of `next` goes on.

    Attributes:
        is_stream: whether a source has no end.
        is_interrupted: whether the last `StopIteration` came from `on_wait`, and not from the data.

    Example:
        >>> from monolith import data
        >>> source = data.arrow_table({"user": [7, 8, 9]}).batch(1)
        >>> with iter(source) as batches:
        ...     first, state = next(batches), batches.state_dict()
        >>> [batch.features["user"].to_lists() for batch in source.resume(state)]
        [[[8]], [[9]]]
    """

    def __init__(self, pipeline: "Pipeline", arrivals: Arrivals, state: State | None) -> None:
        self._pipeline = pipeline
        self.is_stream, self.is_interrupted = arrivals.is_stream, False
        if pipeline.depth:
            arrivals = arrivals.reading_ahead()
        self._wait = SourceWait()
        self._on_wait: Callable[[], None] | None = None
        if self.is_stream:
            arrivals = arrivals.waiting_in(self._wait)
        self._batches = BatchMaker(
            pipeline.columns,
            is_ahead=pipeline.depth > 0,
            left_out=pipeline.left_out,
            has_event_times=self.is_stream,
        )
        self._copier = BatchCopier(arrivals, self._batches, state)
        self._last = self._copier.last
        self._is_closed = self._is_reported = False
        self._ahead: Prefetch[PrefetchedBatch] | None = None
        if pipeline.depth:
            self._ahead = Prefetch(
                self._copier.copy,
                pipeline.depth,
                PrefetchedBatch.is_end,
                "monolith-prefetch",
                self._wait.stop,
            )
            self._ahead.stop_with(self)  # ends the thread of a loop that was left by `break`

    def __next__(self) -> Batch:
        if self._is_closed:
            raise ValueError(
                "[Batches] expected an open iteration, got a closed one; iterate the pipeline "
                "again, or resume it at state_dict()"
            )
        self.is_interrupted = False
        try:
            self._last = self._next()
        except WaitEndedError:
            self.is_interrupted = True
            raise StopIteration from None
        if self._last.copied is None:
            self._report()
            raise StopIteration
        return self._batches.batch(self._last.copied, self._last.event_time)

    def _next(self) -> PrefetchedBatch:
        return self._copier.copy() if self._ahead is None else self._ahead.next(self._on_wait)

    @property
    def on_wait(self) -> Callable[[], None] | None:
        """Function that is called again and again on the thread that waits for a stream.

        It may take long, and may raise `WaitEndedError` to end the iteration. None calls nothing.
        """
        return self._on_wait

    @on_wait.setter
    def on_wait(self, call: Callable[[], None] | None) -> None:
        self._on_wait = call
        if self._ahead is None:
            self._wait.on_wait = call

    def _report(self) -> None:
        if self.num_skipped and not self._is_reported:
            _log.warning("[data] samples left out so far, by reason: %s", self.num_skipped)
        self._is_reported = True

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> State:
        """Return the position of the next batch as a small JSON object; see `Pipeline.resume`."""
        return {"version": STATE_VERSION, **self._last.state}

    @property
    def lag(self) -> int | None:
        """Number of messages of a stream that are there and not read; None if unknown."""
        return None if self._wait.lag is None else self._wait.lag()

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes read and in total, or samples for a source in memory; a total of 0 is unknown."""
        return self._last.progress

    @property
    def num_skipped(self) -> dict[str, int]:
        """Number of skipped samples by broken rule, over all passes."""
        return self._pipeline.bad.total()

    def close(self) -> None:
        """Stop the thread that prepares batches and close files; the state stays."""
        self._is_closed = True
        self._wait.stop()
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None  # drops the waiting batches, or a failure
        self._copier.close()
