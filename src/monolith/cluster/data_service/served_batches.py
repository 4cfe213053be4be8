"""`ServedBatches`: iterates over batches that data workers read, share by share."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from monolith.cluster.data_service.open_share import OpenShare, ServedBatch
from monolith.cluster.data_service.service_clients import ServiceClients
from monolith.cluster.job.job_values import Taken
from monolith.data import Batch
from monolith.errors import UnavailableError

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.1
_WORD_SECONDS = 10.0


class ShareQueue(ABC):
    """Gives shares to one reader, and hears how far they were read. One thread calls."""

    @abstractmethod
    def take(self) -> Taken | None:
        """Return a share; "wait" to ask again soon, "end" if there will be none.

        None means that the answer is on its way.
        """

    @abstractmethod
    def has(self, share: str) -> bool:
        """Whether a share that was taken is not lost to another reader."""

    @abstractmethod
    def note_batch(self, served: ServedBatch) -> None:
        """Note a batch that was given out."""

    @abstractmethod
    def note_end(self, share: str, *, has_given: bool) -> None:
        """Note that a share has no more batches, and whether it had any."""

    @abstractmethod
    def state(self) -> Any:
        """Return the position after the last batch that was given out."""


class ServedBatches(Iterator[Batch]):
    """Iterates over the batches of the shares of a queue, several shares at once.

    Batches of one share come in their order; between shares the first that is there comes first.
    One thread iterates; another one may call `stop`.

    Args:
        clients: Connections of the trainer, which `close` closes.
        queue: Gives the shares.

    Attributes:
        on_wait: Called again and again while the iteration waits; the run may stand in it.
    """

    knows_positions = True  # `state_dict` says where the queue is, or the job does

    def __init__(self, clients: ServiceClients, queue: ShareQueue) -> None:
        self._clients, self._queue = clients, queue
        self._open: list[OpenShare] = []
        self._changed = threading.Event()
        self._is_stopping = self._is_closed = self._has_ended = False
        self._next_take = 0.0
        self._num_closed_moves = 0
        self._heard = self._worded = time.monotonic()
        self.on_wait: Callable[[], None] | None = None

    @property
    def num_moves(self) -> int:
        """Number of changes of a share to another data worker."""
        return self._num_closed_moves + sum(share.num_moves for share in self._open)

    def __next__(self) -> Batch:
        self._heard = self._worded = time.monotonic()
        while not self._is_stopping and not self._is_closed:
            self._changed.clear()
            self._clients.refresh()
            self._take_share()
            served = self._read()
            if served is not None:
                return served.batch
            if self._has_ended and not self._open:
                break
            self._changed.wait(_TICK_SECONDS)
            self._call_on_wait()
            self._check_wait()
        raise StopIteration

    def _take_share(self) -> None:
        """Ask for a share if fewer are read than there are data workers."""
        wanted = max(1, min(self._clients.num_usable, self._clients.options.max_streams))
        while len(self._open) < wanted and time.monotonic() >= self._next_take:
            taken = self._queue.take()
            if taken is None:
                return
            self._has_ended = taken.kind == "end"
            if taken.kind != "share":
                self._next_take = time.monotonic() + _TICK_SECONDS
                return
            self._open.append(
                OpenShare(taken.share, taken.position, self._clients, self._changed.set)
            )

    def _read(self) -> ServedBatch | None:
        loads: dict[str, int] = {}
        for share in self._open:
            if share.address is not None:
                loads[share.address] = loads.get(share.address, 0) + 1
        for share in list(self._open):
            if not self._queue.has(share.share):
                self._drop(share)
                continue
            share.work(loads)
            served = share.read()
            if served is not None:
                if not share.has_ended:
                    share.work(loads)  # ask for the next one, while this one is trained
                self._queue.note_batch(served)
            if share.has_ended:
                self._queue.note_end(share.share, has_given=share.has_given)
                self._drop(share)
            if served is not None:
                if not share.has_ended:  # let the others have their turn
                    self._open.remove(share)
                    self._open.append(share)
                return served
        return None

    def _drop(self, share: OpenShare) -> None:
        self._open.remove(share)
        self._num_closed_moves += share.num_moves
        share.close()

    def _call_on_wait(self) -> None:
        if self.on_wait is not None:
            begin = time.monotonic()
            self.on_wait()
            self._heard += time.monotonic() - begin  # training may have been stopped for long

    def _check_wait(self) -> None:
        """Say what is waited for, and give up if no data worker answers."""
        now, limit = time.monotonic(), self._clients.options.timeout_seconds
        heard = [share.heard for share in self._open] or [now]
        self._heard = max(self._heard, *heard)
        if now - self._heard > limit:
            raise UnavailableError(self._clients.no_worker_text())
        if now - self._worded > _WORD_SECONDS:
            self._worded = now
            _log.warning("[data service] waiting for a batch: %s", self.words_of_wait())

    def words_of_wait(self) -> str:
        """Return what is waited for."""
        if not self._open:
            return f"a share of {self._clients.dispatcher.state_text()}"
        return "; ".join(share.where() for share in self._open)

    def state_dict(self) -> Any:
        """Return the position after the last batch."""
        return self._queue.state()

    def stop(self) -> None:
        """End the iteration soon. Safe in a signal handler."""
        self._is_stopping = True
        self._changed.set()

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        self._changed.set()
        for share in self._open:
            share.close()
        self._open.clear()
        self._clients.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
