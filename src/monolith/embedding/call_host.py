"""The side that calls arrive at: checks them and does them, each write once."""

import concurrent.futures
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from monolith.embedding.host_arguments import HostFacts, short
from monolith.embedding.host_verbs import Verb, check_arguments
from monolith.embedding.waits import WAIT_SECONDS, check_wait, time_text
from monolith.errors import AbortedError, DeadlineExceededError, InvalidArgumentError

__all__ = ["BYE", "Call", "CallHost"]

BYE = "bye"
"""Verb of a client's last call: the host forgets the answers it kept for it."""

_MAX_NUMBER = (1 << 63) - 1
_MAX_GONE = 1024  # clients of which late copies of calls are still refused


class Call(NamedTuple):
    """A call as it travels.

    Attributes:
        client: who calls.
        sequence: number of the call among the client's; with `client`, its id.
        done: every call of the client below this number has its answer, so the shard may forget it.
        verb: what to do.
        arguments: plain values, as `host_verbs.py` says.
    """

    client: int
    sequence: int
    done: int
    verb: str
    arguments: tuple[Any, ...]


class _Write:
    """A write that has begun."""

    def __init__(self) -> None:
        self.start = time.time()
        self.answer: Future[Any] = Future()


class _Client:
    """A client's writes whose answers it may ask for again."""

    def __init__(self) -> None:
        self.done = 0
        self.writes: dict[int, _Write] = {}

    def forget(self, done: int) -> None:
        if done > self.done:
            self.done = done
            for number in [number for number in self.writes if number < done]:
                del self.writes[number]


class CallHost(ABC):
    """Something behind calls. Any thread may call at any time.

    Args:
        facts: of what is behind the host.
        verbs: by name.
        timeout_seconds: how long a write that comes again waits for the first one at most.

    Attributes:
        device: label of the server that this is on; empty: none.
    """

    device = ""

    def __init__(
        self,
        facts: HostFacts,
        verbs: Mapping[str, Verb],
        timeout_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.name = facts.name
        self._timeout_seconds = check_wait(type(self).__name__, timeout_seconds, facts.name)
        self._facts, self._verbs = facts, verbs
        self._clients: dict[int, _Client] = {}
        self._gone: dict[int, None] = {}  # in order
        # Entered again by a cut that is collected, and so closed, inside a call.
        self._lock = threading.RLock()

    def do(self, call: Call) -> Any:
        """Do the call; a write that came before is not done again, and has the same answer.

        Raises:
            InvalidArgumentError: the call is not one of `host_verbs.py`; nothing was done.
        """
        is_write = self._check(call)
        if call.verb == BYE:
            return self._forget(call.client)
        if not is_write:
            return self._run(call)
        with self._lock:
            if call.client in self._gone:
                raise AbortedError(
                    f"[{type(self).__name__}.do] expected calls of a client that is there, got "
                    f"number {call.sequence} of one that is gone (table {self.name!r})"
                )
            client = self._clients.setdefault(call.client, _Client())
            if call.sequence < client.done:
                raise AbortedError(
                    f"[{type(self).__name__}.do] expected calls from number {client.done} on, got "
                    f"{call.sequence}, which has its answer (table {self.name!r})"
                )
            client.forget(call.done)
            write = client.writes.get(call.sequence)
            is_new = write is None
            if write is None:
                write = client.writes[call.sequence] = _Write()
        if is_new:
            try:
                write.answer.set_result(self._run(call))
            except BaseException as error:
                write.answer.set_exception(error)
        return write.answer.result() if is_new else self._answer(call, write)

    def _check(self, call: Call) -> bool:
        """Refuse what is no call of a verb; whether it is a write."""
        client, sequence, done, name, arguments = call
        if not (
            type(client) is type(sequence) is type(done) is int
            and 0 <= client <= _MAX_NUMBER
            and 0 <= done <= sequence <= _MAX_NUMBER
        ):
            raise self._error(
                "a client, a sequence number and answers below it as ints in [0, 2**63)",
                f"({short(client)}, {short(sequence)}, {short(done)})",
            )
        verb = self._verbs.get(name) if type(name) is str else None
        if verb is not None:
            check_arguments(self._facts, type(self).__name__, name, verb, arguments)
            return verb.is_write
        if name != BYE or arguments != ():
            raise self._error("a verb of a shard", short(name))
        return False

    def _error(self, expected: str, got: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"[{type(self).__name__}.do] expected {expected}, got {got} (table {self.name!r})"
        )

    def _answer(self, call: Call, write: _Write) -> Any:
        """Of a write that another thread may be doing; it goes on if it takes too long."""
        concurrent.futures.wait([write.answer], self._timeout_seconds)
        if not write.answer.done():
            raise DeadlineExceededError(
                f"[{type(self).__name__}.do] expected the end of {call.verb!r}, number "
                f"{call.sequence} of client {call.client}, within {self._timeout_seconds} seconds, "
                f"got a call that runs since {time_text(write.start)} (table {self.name!r}); it "
                "goes on: send it again for its answer, or make the host with a larger "
                "timeout_seconds"
            )
        return write.answer.result()

    def _forget(self, client: int) -> None:
        with self._lock:
            self._clients.pop(client, None)
            self._gone[client] = None
            while len(self._gone) > _MAX_GONE:
                del self._gone[next(iter(self._gone))]

    @abstractmethod
    def _run(self, call: Call) -> Any:
        """Do a call that was checked."""
