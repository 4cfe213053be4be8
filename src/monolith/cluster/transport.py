"""Send calls to shards through one small interface: in this process now, over a wire later.

What crosses it is plain: a verb's name, numbers, tensors, and tuples, lists and dicts of them. A
call has an id, (client, sequence number), so that one that was lost can be sent again and one that
comes twice is done once (`call_host.py`).
"""

import concurrent.futures
import contextlib
import functools
import secrets
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from monolith.cluster.call_host import BYE, Call, CallHost
from monolith.errors import DeadlineExceededError, UnavailableError
from monolith.table.arguments import WAIT_SECONDS, check_wait, time_text

_MAX_SPREAD = 256  # numbers between the oldest call that runs and the next one
# Two classes of one meaning until Python 3.11.
_LOST = (TimeoutError, concurrent.futures.TimeoutError, UnavailableError)


class Pending(Protocol):
    """An answer that may still be on its way; `concurrent.futures.Future` is one."""

    def result(self, timeout: float | None = None) -> Any:
        """The answer, or the shard's error; `TimeoutError` if it does not come in time."""

    def add_done_callback(self, tell: Callable[[Any], object], /) -> None:
        """Call `tell` when the answer is here, now if it is; what it is given is of no use."""


class Transport(ABC):
    """The way to one shard. Any thread may send at any time.

    Attributes:
        device: label of the server that has the shard; empty: none.
        timeout_seconds: Seconds to wait for an answer before the call is sent again.
        num_tries: Maximum number of times that a call is sent.
    """

    device = ""
    timeout_seconds = 30.0
    num_tries = 5

    @abstractmethod
    def send(self, call: Call) -> Pending:
        """Send a call without waiting for its answer; `UnavailableError` if it cannot be sent."""


class _Answer(NamedTuple):
    """What a shard in this process said."""

    value: Any
    error: BaseException | None = None

    def result(self, timeout: float | None = None) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def add_done_callback(self, tell: Callable[[Any], object], /) -> None:
        tell(self)


class LocalTransport(Transport):
    """A shard in this process: the call is done by the thread that sends it.

    Args:
        host: of the shard.
    """

    def __init__(self, host: CallHost) -> None:
        self.host, self.device = host, host.device

    def send(self, call: Call) -> Pending:
        """Do the call now; its error is raised by the answer, as from afar."""
        try:
            return _Answer(self.host.do(call))
        except Exception as error:
            return _Answer(None, error)


class ShardClient:
    """Sends calls to all shards at once, waits for all answers, and repeats what was lost.

    Any thread may call at any time.

    Args:
        name: Name of the table, for messages.
        transports: Transports, one per shard.
        timeout_seconds: Seconds to wait for an answer before the call is sent again; None takes
            those of each transport.
        num_tries: Maximum number of times that a call is sent; None takes that of each transport.
        owner: Class that calls, for messages.
    """

    def __init__(
        self,
        name: str,
        transports: Sequence[Transport],
        *,
        timeout_seconds: float | None = None,
        num_tries: int | None = None,
        owner: str = "ShardedTable",
    ) -> None:
        if num_tries is not None and num_tries < 1:
            raise ValueError(
                f"[ShardClient] expected num_tries >= 1, got {num_tries} (table {name!r})"
            )
        self._name, self._owner = name, owner
        self.transports = list(transports)
        if timeout_seconds is not None:
            check_wait("ShardClient", timeout_seconds, name)
        self._timeout_seconds, self._num_tries = timeout_seconds, num_tries
        self._client = secrets.randbits(63)
        self._next_number = 0
        self._running: dict[int, int] = {}  # number -> thread of the caller, oldest first
        # Entered again by a cut that is collected, and so closed, inside a call.
        self._lock = threading.Condition(threading.RLock())
        # Hosts outlive their clients, and would keep the last answer of each.
        self._goodbye = weakref.finalize(self, _say_bye, self.transports, self._client)
        self._goodbye.atexit = False

    def close(self) -> None:
        """Let the shards forget this client. No call may follow; closing twice is fine."""
        self._goodbye()

    def call(
        self,
        verb: str,
        arguments: Sequence[tuple[Any, ...] | None],
        tell: Callable[[int], None] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> list[Any]:
        """One call per shard; a shard without arguments is not asked.

        Args:
            verb: Name of the verb.
            arguments: Arguments for each shard, or None.
            tell: Gets the number of each shard as soon as the shard's answer is here; an error is
                none. Any thread may call it.
            timeout_seconds: Seconds to wait for an answer of the only try; a call that could not
                be sent by then is never done. None tries as often as other calls.

        Returns:
            The answers of the shards that were asked, in order.
        """
        return self.begin(verb, arguments, tell, timeout_seconds=timeout_seconds)()

    def begin(
        self,
        verb: str,
        arguments: Sequence[tuple[Any, ...] | None],
        tell: Callable[[int], None] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Callable[[], list[Any]]:
        """Send one call per shard; return the function that waits for the answers.

        Call the function once, in any case; arguments are those of `call`.
        """
        with self._lock:
            if not self._lock.wait_for(self._may_begin, WAIT_SECONDS):
                raise DeadlineExceededError(
                    f"[{self._owner}.{verb}] expected an answer to call {min(self._running)} "
                    f"within {WAIT_SECONDS:g} seconds, got none, and {_MAX_SPREAD} calls after it "
                    f"(table {self._name!r})"
                )
            number, self._next_number = self._next_number, self._next_number + 1
            self._running[number] = threading.get_ident()
            done = next(iter(self._running))
        calls = {
            shard: Call(self._client, number, done, verb, given)
            for shard, given in enumerate(arguments)
            if given is not None
        }
        try:
            pending = {shard: self._send(shard, call) for shard, call in calls.items()}
            if tell is not None:
                for shard, answer in pending.items():
                    answer.add_done_callback(functools.partial(_tell, tell, shard))
        except BaseException:
            self._forget(number)
            raise

        def finish() -> list[Any]:
            try:
                return self._answers(calls, pending, timeout_seconds)
            finally:
                self._forget(number)

        return finish

    def _may_begin(self) -> bool:
        """Whether the oldest call is not so old that its host may have forgotten it.

        A call inside of the oldest one, such as the end of a cut that is collected, does not wait.
        """
        if not self._running:
            return True
        oldest, thread = next(iter(self._running.items()))
        return self._next_number - oldest <= _MAX_SPREAD or thread == threading.get_ident()

    def _forget(self, number: int) -> None:
        with self._lock:
            self._running.pop(number, None)
            self._lock.notify_all()

    @property
    def number(self) -> int:
        """Number of the client, by which hosts know it."""
        return self._client

    def _answers(
        self, calls: dict[int, Call], pending: dict[int, Pending], limit: float | None
    ) -> list[Any]:
        """All answers, also where one is an error: no shard works on when this returns."""
        answers: list[Any] = []
        errors: list[BaseException] = []
        for shard, call in calls.items():
            try:
                answers.append(self._answer(shard, call, pending[shard], limit))
            except Exception as error:
                errors.append(self._with_server(shard, error))
        if errors:
            raise errors[0]
        return answers

    def label_of(self, shard: int) -> str:
        """Name a shard for messages, with the server that has it."""
        device = self.transports[shard].device
        return f"shard {shard} on {device}" if device else f"shard {shard}"

    def _with_server(self, shard: int, error: Exception) -> Exception:
        """Add the server to the message of an error that it raised."""
        device, text = self.transports[shard].device, str(error)
        if device and device not in text and error.args == (text,):
            error.args = (f"{text} ({self.label_of(shard)})",)
        return error

    def _send(self, shard: int, call: Call) -> Pending:
        try:
            return self.transports[shard].send(call)
        except UnavailableError as error:
            return _Answer(None, error)

    def _answer(self, shard: int, call: Call, pending: Pending, limit: float | None) -> Any:
        transport, start = self.transports[shard], time.time()
        num_tries = transport.num_tries if self._num_tries is None else self._num_tries
        seconds = self._timeout_seconds
        seconds = transport.timeout_seconds if seconds is None else seconds
        if limit is not None:
            num_tries, seconds = 1, round(limit, 3)
        for number in range(1, num_tries + 1):
            try:
                return pending.result(seconds)
            except _LOST as error:
                if number == num_tries:
                    if limit is not None and isinstance(pending, concurrent.futures.Future):
                        pending.cancel()
                    raise UnavailableError(
                        f"[{self._owner}.{call.verb}] expected an answer of "
                        f"{self.label_of(shard)} within {num_tries} tries of {seconds} seconds, "
                        f"got none since {time_text(start)}: {error!r} (table {self._name!r}); "
                        "the call may be done in part"
                    ) from error
            pending = self._send(shard, call)
        raise AssertionError("num_tries is at least 1")


def _tell(tell: Callable[[int], None], shard: int, answer: Pending) -> None:
    """Tell the number of a shard whose answer is no error."""
    with contextlib.suppress(Exception):  # the caller gets the error
        answer.result(0)
        tell(shard)


def _say_bye(transports: list[Transport], client: int) -> None:
    """Let the shards forget a client; one that cannot be reached keeps its last answers."""
    for transport in transports:
        with contextlib.suppress(Exception):  # the client is gone: no caller is left for the error
            transport.send(Call(client, 0, 0, BYE, ()))
