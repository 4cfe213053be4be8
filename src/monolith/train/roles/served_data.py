"""The data service as part of a run: the data of a task, and the shares of a job."""

from collections.abc import Iterable, Sequence
from typing import Any

from monolith.cluster.data_service.open_share import ServedBatch
from monolith.cluster.data_service.served_batches import ServedBatches, ShareQueue
from monolith.cluster.data_service.service_clients import ServiceClients
from monolith.cluster.data_service.service_source import ServiceSource, is_whole
from monolith.cluster.job.job_client import JobClient
from monolith.cluster.job.job_values import Taken, name_of
from monolith.data import Batch
from monolith.errors import FailedPreconditionError
from monolith.train.inputs import TaskColumns
from monolith.train.ranks.rank_source import is_of_ranks
from monolith.train.roles.job_source import (
    BeginAt,
    JobPosition,
    JobSource,
    is_offered,
    job_source,
)
from monolith.train.task import Mode, Task


def training_data(task: Task) -> Iterable[Batch]:
    """Return the training data of a task, with the columns that a trainer reads."""
    return TaskColumns.of(task).select(task.source(Mode.TRAIN))


class ServedPosition(JobPosition):
    """A batch of a share that a data worker has read."""

    __slots__ = ()

    @property
    def is_in_source(self) -> bool:
        """Whether the share is the whole source."""
        return is_whole([name_of(self.share)[1]])


class JobQueue(ShareQueue):
    """The shares of a job, which server 0 hands out, as without a data service.

    Args:
        job: Connection to the job.
    """

    def __init__(self, job: JobClient) -> None:
        self._job = job
        self._finished: list[str] = []  # without a batch: no step will say that they have ended
        self._last: ServedPosition | None = None
        self.first: Any = None
        """Position in the whole source at which a job of one worker begins."""

    def take(self) -> Taken:
        """Return a share of the job."""
        finished, self._finished = self._finished, []
        taken = self._job.take(finished)
        if taken.kind == "share" and taken.position is None and name_of(taken.share)[0] == 0:
            taken, self.first = taken._replace(position=self.first), None
        return taken

    def has(self, share: str) -> bool:
        """Whether a share that was taken is not lost to another worker."""
        return self._job.has(share)

    def note_batch(self, served: ServedBatch) -> None:
        """Note a batch, whose position the job learns with its step."""
        self._last = ServedPosition(
            served.share, served.position, served.is_last, len(served.batch)
        )

    def note_end(self, share: str, *, has_given: bool) -> None:
        """Note the end of a share, which the job learns with the step of its last batch."""
        if not has_given:
            self._finished.append(share)

    def state(self) -> ServedPosition | None:
        """Return the position after the last batch; None before the first."""
        return self._last


class ServedJobBatches(ServedBatches):
    """The batches of a worker of a job, which data workers read."""

    def __init__(self, clients: ServiceClients, queue: JobQueue, names: Sequence[str]) -> None:
        super().__init__(clients, queue)
        self._first_queue, self._is_whole = queue, is_whole(names)
        self._is_alone = queue._job.num_workers == 1

    def resume(self, position: Any) -> "ServedJobBatches":
        """Go on: the job knows the positions of its shares.

        Args:
            position: Position in the whole source, of a run without a job; used by a job of one
                worker that begins its share.

        Raises:
            FailedPreconditionError: The data service divides the source into several shares.
        """
        if self._is_alone and position is not None and not is_of_ranks(position):
            if not self._is_whole:
                raise FailedPreconditionError(
                    "[ServedJobBatches.resume] expected shares of the job, got the position of a "
                    "run that read the whole source, while the data service divides it; go on "
                    "without --data-service, or with a dispatcher of one reader (--workers 1)"
                )
            self._first_queue.first = position
        return self


def worker_batches(
    job: JobClient, source: Iterable[Batch], begin: BeginAt | None = None
) -> JobSource | ServedJobBatches:
    """Return a worker's part of a source; the chief tells the job which shares there are.

    A data service has the shares for which it was started.

    Args:
        job: Connection to the job.
        source: Source of the task, or a data service.
        begin: Where the job goes on with a checkpoint; None begins with all data.
    """
    if not isinstance(source, ServiceSource):
        return job_source(job, source, begin)
    clients = ServiceClients(source.options)
    try:
        names, num_epochs = clients.shares()
        if job.is_chief:
            if begin is not None and not is_offered(job):
                _check_begin(job, begin)
            job.offer(names, None if num_epochs < 0 else num_epochs)
        return ServedJobBatches(clients, JobQueue(job), names)
    except BaseException:
        clients.close()
        raise


def _check_begin(job: JobClient, begin: BeginAt) -> None:
    """Warn of a position that says nothing about the shares of a data service."""
    if is_of_ranks(begin.position):
        begin.warn("the data service has other shares than the ranks of the checkpoint")
    elif job.num_workers > 1:
        begin.warn(f"a data service of {job.num_workers} workers has no position of one process")
