"""`OpenShare`: a share that a trainer reads from a data worker, and goes on with at another one."""

import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from monolith.cluster.data_service.batch_codec import batch_from_value
from monolith.cluster.data_service.service_caller import ServiceCaller
from monolith.cluster.data_service.service_clients import ServiceClients
from monolith.data import Batch
from monolith.errors import InvalidArgumentError, UnavailableError

_log = logging.getLogger(__name__)


class ServedBatch(NamedTuple):
    """A batch of a share.

    Attributes:
        batch: The batch.
        share: The share.
        position: Position in the share after the batch.
        is_last: Whether the batch ends the share.
    """

    batch: Batch
    share: str
    position: Any
    is_last: bool


class OpenShare:
    """Reads a share, one batch after another. One thread calls.

    A data worker that is lost is replaced by another one, which goes on at the position after the
    last batch that was given out: no batch is lost or given out twice.

    Args:
        share: The share.
        position: Where to begin; None is the beginning.
        clients: Connections of the trainer.
        tell: Called on a thread of a connection when an answer is there.

    Attributes:
        share: The share.
        position: Position after the last batch that was given out.
        has_given: Whether a batch was given out.
        has_ended: Whether the share has no more batches.
        num_moves: Number of changes to another data worker.
        heard: When a data worker has last said that it reads the share, in monotonic seconds.
    """

    def __init__(
        self,
        share: str,
        position: Any,
        clients: ServiceClients,
        tell: Callable[[], object],
    ) -> None:
        self.share, self.position = share, position
        self.has_given = self.has_ended = False
        self.num_moves, self.heard = 0, 0.0
        self._clients, self._tell = clients, tell
        self._caller: ServiceCaller | None = None
        self._opening: Future[Any] | None = None
        self._stream = self._window = self._next = self._taken = 0
        self._asked: deque[Future[Any]] = deque()
        self._since = time.monotonic()  # of the last answer, or of the first question

    @property
    def address(self) -> str | None:
        """Address of the data worker that reads; None without one."""
        return None if self._caller is None else self._caller.address

    def where(self) -> str:
        """Return the share and who reads it, for messages."""
        who = "no data worker" if self._caller is None else self._caller.state_text()
        return f"{self.share}: {who}"

    def work(self, loads: dict[str, int]) -> None:
        """Find a data worker if there is none, ask for batches, and leave one that is lost.

        Args:
            loads: Address -> number of streams of this trainer.

        Raises:
            Exception: The error of a data worker that cannot open the share.
        """
        if self._caller is not None and self._is_lost(self._caller):
            self._leave(self._caller)
        if self._caller is None:
            self._caller = self._clients.worker(loads)
            if self._caller is None:
                return
            loads[self._caller.address] = loads.get(self._caller.address, 0) + 1
            self._since = time.monotonic()
            self._opening = self._start("open_stream", self.share, json.dumps(self.position))
        if self._opening is not None and self._opening.done():
            opening, self._opening = self._opening, None
            answer = self._result(opening)
            if answer is not None:
                self._stream, ahead = answer
                self._window = min(self._clients.options.window, ahead)
                self._next = self._taken = 0
        while self._window and len(self._asked) < self._window:
            self._ask(self._next)
            self._next += 1

    def _ask(self, number: int) -> None:
        self._asked.append(self._start("read_batch", self._stream, number, self._taken))

    def _start(self, verb: str, *arguments: Any) -> "Future[Any]":
        assert self._caller is not None
        future = self._caller.start(verb, *arguments)
        future.add_done_callback(lambda _: self._tell())
        return future

    def _is_lost(self, caller: ServiceCaller) -> bool:
        options = self._clients.options
        if caller.away_seconds > options.away_seconds:
            return True
        # An answer that is there may be old: this trainer was busy, or was stopped.
        first = self._opening or (self._asked[0] if self._asked else None)
        is_waiting = first is not None and not first.done()
        return is_waiting and time.monotonic() - self._since > options.silent_seconds

    def _leave(self, caller: ServiceCaller) -> None:
        _log.warning(
            "[data service] share %s goes on at another data worker: %s",
            self.share,
            caller.state_text(),
        )
        self.num_moves += 1
        self._close_stream()
        self._forget(is_lost=True)

    def _forget(self, *, is_lost: bool = False) -> None:
        for future in self._asked:
            future.cancel()
        self._asked.clear()
        caller, self._caller, self._opening, self._window = self._caller, None, None, 0
        if caller is not None:
            self._clients.leave(caller, is_lost=is_lost)

    def _close_stream(self) -> None:
        """Let the data worker close its stream, also one that it has not opened yet."""
        caller = self._caller
        if caller is None or caller.away_seconds > 0.0:
            return
        if self._window:
            caller.start("close_stream", self._stream)
        elif self._opening is not None:
            self._opening.add_done_callback(lambda opening: _close_opened(caller, opening))

    def _result(self, future: "Future[Any]") -> Any:
        """Return an answer; None if the data worker is lost, and the share goes on elsewhere."""
        self._since = time.monotonic()
        try:
            return future.result()
        except UnavailableError:
            if self._caller is not None:
                self._leave(self._caller)
            return None
        except Exception as error:
            if len(error.args) == 1:
                error.args = (f"{error.args[0]} (data worker {self.address}, share {self.share})",)
            raise

    def read(self) -> ServedBatch | None:
        """Return the next batch if it is there.

        Raises:
            Exception: The error of the data.
        """
        if self.has_ended or not self._asked or not self._asked[0].done():
            return None
        answer = self._result(self._asked.popleft())
        if answer is None:
            return None
        kind, *fields = answer
        if kind == "gone":  # the data worker has started again, or has given this trainer up
            self.num_moves += 1
            self._forget()
            return None
        self.heard = time.monotonic()
        if kind == "wait":  # alive, without a batch: an idle stream, or a slow one
            future = self._start("read_batch", self._stream, self._taken, self._taken)
            self._asked.appendleft(future)
            return None
        if kind == "end":
            self._end()
            return None
        if kind != "batch" or len(fields) != 3:
            raise InvalidArgumentError(
                f"[data service] expected a batch of {self.where()}, got {kind!r}"
            )
        value, position, is_last = fields
        batch = batch_from_value(value)
        self._taken += 1
        self.position, self.has_given = json.loads(position), True
        if is_last:
            self._end()
        return ServedBatch(batch, self.share, self.position, is_last)

    def _end(self) -> None:
        self.has_ended = True
        self.close()

    def close(self) -> None:
        """Let the data worker close its stream. Closing twice is fine."""
        self._close_stream()
        self._forget()


def _close_opened(caller: ServiceCaller, opening: "Future[Any]") -> None:
    with contextlib.suppress(Exception):  # it was not opened, or the connection is closed
        caller.start("close_stream", opening.result()[0])
