"""`DataWorkerHost`: reads shares of its own task's data, and serves their batches."""

import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from monolith.cluster.data_service.service_host import ServiceHost
from monolith.cluster.data_service.service_verbs import DATA_WORKER_VERBS
from monolith.cluster.data_service.stream import Stream
from monolith.cluster.job.job_values import is_share, name_of
from monolith.data import Batch, Pipeline
from monolith.data.shares import split_source
from monolith.errors import FailedPreconditionError, InvalidArgumentError

KIND = "data worker"
"""What a data worker says that it is."""

MAX_STREAMS = 256
"""Most shares that a data worker reads at once, for all readers."""

MakeSource = Callable[[int], Iterable[Batch]]
"""Number of data workers for which the data is divided -> source of the task.

Called again for each share of a source that is no pipeline.
"""


class ServedShares(Protocol):
    """Shares of a source: those of `split_source`, or of a source with a method `divide`."""

    num_epochs: int | None

    def names(self) -> list[str]:
        """Return the names of the shares of an epoch."""

    def open(self, name: str, epoch: int, position: Any) -> Any:
        """Return the batches of a share, from its beginning or from a position on."""


class SourceShares:
    """The shares of a task's source, for data workers that all have the same task.

    Args:
        make_source: Returns the source.
        num_readers: Number of data workers for which the data is divided.
    """

    def __init__(self, make_source: MakeSource, num_readers: int) -> None:
        self._make_source, self._num_readers = make_source, num_readers
        self._shares, self._may_open_again = self._divided()

    def _divided(self) -> tuple[ServedShares, bool]:
        source = self._make_source(self._num_readers)
        divide = getattr(source, "divide", None)
        if divide is not None:
            return divide(self._num_readers), True
        return split_source(source, self._num_readers), isinstance(source, Pipeline)

    def names(self) -> list[str]:
        """Return the names of the shares of an epoch."""
        return self._shares.names()

    @property
    def num_epochs(self) -> int:
        """Number of epochs; -1 has no end."""
        return -1 if self._shares.num_epochs is None else self._shares.num_epochs

    def open(self, name: str, epoch: int, position: Any) -> Any:
        """Return the batches of a share, from its beginning or from a position on."""
        shares = self._shares if self._may_open_again else self._divided()[0]
        return shares.open(name, epoch, position)


class DataWorkerHost(ServiceHost):
    """The streams of a data worker. Any thread may call at any time.

    Args:
        shares: Shares of the data.
        ahead: Number of batches that each stream reads ahead of its reader.
    """

    def __init__(self, shares: SourceShares, ahead: int = 4) -> None:
        super().__init__(KIND, DATA_WORKER_VERBS, frozenset({"describe_service", "read_batch"}))
        self._source_shares, self._ahead = shares, ahead
        self._streams: dict[int, tuple[int, Stream]] = {}  # number -> client and stream
        # Drawn, so that a stream of an earlier start is none of this one.
        self._numbers = itertools.count(secrets.randbits(40))
        self._num_closed_batches = 0
        self._streams_lock = threading.Lock()

    def status(self) -> dict[str, Any]:
        """Return the numbers of streams and of batches."""
        with self._streams_lock:
            streams = [stream for _, stream in self._streams.values()]
            num_batches = self._num_closed_batches + sum(s.num_batches for s in streams)
        facts = {"label": self.label, "life": self.life}
        return {**facts, "streams": len(streams), "batches": num_batches}

    def _do_describe_service(self, client: int) -> dict[str, Any]:
        return {"kind": KIND, "ahead": self._ahead}

    def _do_open_stream(self, client: int, share: str, position: str) -> tuple[int, int]:
        """Return the number of a new stream, and how far it reads ahead.

        The stream opens its share, which may take long; an error of that is its first answer.
        """
        epoch, name, place = _checked(share, position)
        with self._streams_lock:
            if len(self._streams) >= MAX_STREAMS:
                raise FailedPreconditionError(
                    f"[DataWorkerHost.open_stream] expected at most {MAX_STREAMS} shares at once, "
                    "got one more; start more data workers"
                )
            number = next(self._numbers)
            opened = partial(self._source_shares.open, name, epoch, place)
            self._streams[number] = client, Stream(opened, self._ahead)
            return number, self._ahead

    def _do_read_batch(self, client: int, stream: int, number: int, taken: int) -> Any:
        """Return an answer of a stream; ("gone",) if there is no such stream."""
        with self._streams_lock:
            found = self._streams.get(stream)
        return ("gone",) if found is None else found[1].read(number, taken)

    def _do_close_stream(self, client: int, stream: int) -> None:
        self._end([stream])

    def release_client(self, client: int, *, is_gone: bool = False) -> None:
        """Close the streams of a reader that is gone."""
        super().release_client(client, is_gone=is_gone)
        with self._streams_lock:
            numbers = [n for n, (owner, _) in self._streams.items() if owner == client]
        self._end(numbers)

    def _end(self, numbers: Sequence[int]) -> list[Stream]:
        with self._streams_lock:
            ended = [self._streams.pop(n)[1] for n in numbers if n in self._streams]
            self._num_closed_batches += sum(stream.num_batches for stream in ended)
        for stream in ended:
            stream.close()
        return ended

    def tick(self) -> None:
        """Tell readers that have waited long enough that there is no batch yet."""
        now = time.monotonic()
        with self._streams_lock:
            streams = [stream for _, stream in self._streams.values()]
        for stream in streams:
            stream.tick(now)

    def end_waits(self) -> None:
        """Answer all readers that wait: the process ends."""
        self.close()

    def close(self) -> None:
        """End all streams. Closing twice is fine."""
        for stream in self._end(list(self._streams)):
            stream.join()


def _checked(share: str, position: str) -> tuple[int, str, Any]:
    """Return epoch, name and position of a share, which may come from anybody."""
    if not is_share(share):
        raise InvalidArgumentError(
            f"[DataWorkerHost.open_stream] expected a share, got {share[:100]!r}"
        )
    try:
        place = json.loads(position)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"[DataWorkerHost.open_stream] expected a position as JSON, got {position[:100]!r}"
        ) from error
    return *name_of(share), place
