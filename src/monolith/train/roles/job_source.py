"""`JobSource`: the batches of the shares that a worker gets from its job."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from monolith.cluster.job.job_client import JobClient
from monolith.cluster.job.job_values import SavedJob, name_of, share_of
from monolith.data import Batch, Batches
from monolith.data.shares.share_names import WholeShare
from monolith.train.ranks.rank_source import (
    RankSource,
    is_of_ranks,
    position_of_shares,
    warn_read_again,
)
from monolith.train.run_state import RunState

_POLL_SECONDS = 0.1


class JobPosition(NamedTuple):
    """A batch of a share, as the progress of a step says it.

    Attributes:
        share: Share of the batch.
        position: Position in the share after the batch.
        is_last: Whether the batch ends the share.
        num_samples: Number of samples of the batch.
    """

    share: str
    position: Any
    is_last: bool
    num_samples: int

    @property
    def is_in_source(self) -> bool:
        """Whether the share is the whole source, and the position one in it."""
        return name_of(self.share) == (0, str(WholeShare()))


class JobSource(Iterator[Batch]):
    """Iterates over batches of shares, one share after another, until the job has no more.

    It waits while other workers have shares that may come back. One thread iterates.

    Args:
        job: Connection to the job.
        shares: Shares of the task's source.

    Attributes:
        on_wait: Called again and again while a share that is a stream is waited for.
    """

    knows_positions = True  # those of the shares are at server 0, and in its part of checkpoints

    def __init__(self, job: JobClient, shares: "OpenedShares") -> None:
        self._job, self._shares = job, shares
        self._share = ""
        self._batches: Iterator[Batch] | None = None
        self._next: tuple[Batch, Any] | None = None  # read ahead: whether a batch is the last
        self._last: JobPosition | None = None
        self._first: Any = None  # position of a run without a job
        self._is_stopping = self._has_given = False
        self._finished: list[str] = []  # shares without a batch
        self.on_wait: Callable[[], None] | None = None

    def resume(self, position: Any) -> "JobSource":
        """Go on: the job knows the positions of its shares.

        Args:
            position: Position of the checkpoint; a job of one worker that begins its share, the
                whole source, uses one in the whole source.
        """
        is_in_source = self._job.num_workers == 1 and not is_of_ranks(position)
        self._first = position if is_in_source else None
        return self

    def __next__(self) -> Batch:
        while self._next is None:
            if self._batches is None and not self._open_next():
                raise StopIteration
            self._next = self._read()
        (batch, position), self._next = self._next, None
        self._has_given, is_last = True, False
        if self._job.has(self._share):
            if not self.is_stream:  # a stream has no last batch, and the next one may come late
                self._next = self._read()
                is_last = self._batches is None
        else:  # another worker has the share by now
            self._close_share()
        self._last = JobPosition(self._share, position, is_last, len(batch))
        return batch

    def _read(self) -> tuple[Batch, Any] | None:
        """Return the next batch of the share with its position; None at the end of the share."""
        assert self._batches is not None
        if isinstance(self._batches, Batches):
            self._batches.on_wait = self.on_wait
        try:
            batch = next(self._batches)
        except StopIteration:
            if self.is_interrupted:  # the run is to end, and not the share
                raise
            self._close_share()
            if not self._has_given:  # no step will say that the share has ended
                self._finished.append(self._share)
            return None
        return batch, self._batches.state_dict()  # type: ignore[attr-defined]

    @property
    def is_stream(self) -> bool:
        """Whether the source is a stream, which one worker reads as a whole."""
        return getattr(self._shares, "is_stream", False)

    @property
    def is_interrupted(self) -> bool:
        """Whether the last `StopIteration` came from `on_wait`, and not from the data."""
        return getattr(self._batches, "is_interrupted", False)

    def _open_next(self) -> bool:
        while not self._is_stopping:
            finished, self._finished = self._finished, []
            taken = self._job.take(finished)
            if taken.kind == "end":
                return False
            if taken.kind == "share":
                epoch, name = name_of(taken.share)
                position = taken.position
                if position is None and epoch == 0:
                    position, self._first = self._first, None
                self._share, self._has_given = taken.share, False
                self._batches = self._shares.open(name, epoch, position)
                return True
            if self._job.on_wait is not None:
                self._job.on_wait()
            time.sleep(_POLL_SECONDS)
        return False

    def _close_share(self) -> None:
        batches, self._batches = self._batches, None
        if batches is not None and hasattr(batches, "close"):
            batches.close()

    def state_dict(self) -> JobPosition | None:
        """Return the position after the last batch; None before the first."""
        return self._last

    def stop(self) -> None:
        """Give no more shares out. Safe in a signal handler."""
        self._is_stopping = True

    def close(self) -> None:
        """Close the files of the share."""
        with contextlib.suppress(ValueError):
            self._close_share()


class OpenedShares(Protocol):
    """Shares of a source by name: `RankSource`."""

    def open(self, name: str, epoch: int, position: Any) -> Any:
        """Return the batches of a share, from its beginning or from a position on."""


def job_source(
    job: JobClient, source: Iterable[Batch], begin: "BeginAt | None" = None
) -> JobSource:
    """Return the worker's part of a source; the chief tells the job which shares there are.

    A source with a method `divide(num_workers)` has shares of its own.

    Args:
        job: Connection to the job.
        source: Source of the task.
        begin: Where the job goes on with a checkpoint; None begins with all data.
    """
    num_trained = None if begin is None else begin.num_trained
    shares = RankSource(source, job.worker, job.num_workers, num_trained=num_trained)
    if not job.is_chief:
        return JobSource(job, shares)
    if begin is not None and not is_offered(job) and _is_divided(job, source, begin):
        _begin_shares(job, shares, begin.position)
    else:
        job.offer(shares.names(), shares.num_epochs)
    return JobSource(job, shares)


def is_offered(job: JobClient) -> bool:
    """Whether a job knows its shares."""
    return bool(job.describe()[0]["is_offered"])


class BeginAt(NamedTuple):
    """The place in the data at which a job goes on with a checkpoint.

    Attributes:
        position: Position of the checkpoint.
        num_trained: Number of samples that were trained before; None if it is not known.
    """

    position: Any
    num_trained: int | None

    @classmethod
    def of(cls, state: RunState) -> "BeginAt | None":
        """Return the place of a restored run; None where the next run begins."""
        is_known = state.is_restored and state.position is not None
        return cls(state.position, state.num_before) if is_known else None

    def warn(self, why: str) -> None:
        """Warn that the data is read from the beginning."""
        warn_read_again(why, self.num_trained)


def _is_divided(job: JobClient, source: Iterable[Batch], begin: BeginAt) -> bool:
    """Whether a job goes on with the shares that a position leaves, and not in its whole share."""
    if is_of_ranks(begin.position):
        return True
    if job.num_workers == 1:
        return False
    if not hasattr(source, "resume"):
        begin.warn(f"the source {type(source).__name__} of {job.num_workers} workers has no resume")
        return False
    return True


def _begin_shares(job: JobClient, shares: RankSource, position: Any) -> None:
    """Tell the job the shares that a position leaves."""
    lists = shares.lists_at(position)
    left = [(share_of(epoch, name), begin) for part in lists for epoch, name, begin in part]
    epochs = shares.names(), shares.num_epochs, shares.first_epoch - 1
    job.load([{"state": SavedJob.begun(*epochs, left, num_steps=job.num_steps)._asdict()}])


def position_of_job(saved: SavedJob, num_ranks: int) -> dict[str, Any] | None:
    """Return what the workers of a job have left, as ranks or a run in one process go on with it.

    Args:
        saved: State of the job.
        num_ranks: Number of ranks; 1 in one process.
    """
    if saved.names is None:
        return None
    left = [(*name_of(share), position) for share, position in saved.left]
    # Every number from 2 on divides later epochs; with 1, all epochs are in the whole share.
    division = 1 if saved.names == [str(WholeShare())] else max(2, num_ranks)
    return position_of_shares([left], division, saved.epoch + 1)


def source_position(position: Any, *, is_alone: bool) -> Any:
    """Return what a checkpoint stores as the position in the source, apart from the job.

    A job of one worker has the whole source as its share, so that a run without a job can go on.
    """
    if not isinstance(position, JobPosition):
        return position
    is_in_source = is_alone and position.is_in_source
    return position.position if is_in_source else None
