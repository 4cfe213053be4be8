"""Calls and hosts: a host does each call once, however often the transport repeats the call."""

import concurrent.futures
import copy
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

import monolith._native as _native
from monolith.cluster.host_verbs import HostFacts, Verb, check_arguments, short
from monolith.errors import (
    AbortedError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
)
from monolith.table.arguments import WAIT_SECONDS, check_wait, time_text
from monolith.table.routing import FloorModRouting, PartitionRouting, Placement

BYE = "bye"
"""Verb of a client's last call: the host forgets the answers it kept for it."""

_MAX_NUMBER = (1 << 63) - 1
_MAX_GONE = 1024  # clients that ended of which late copies of calls are still refused
MAX_FENCED = 1 << 20
"""Most clients that a host refuses for ever; their numbers take about 100 MiB."""
_MAX_KEPT = 1024  # answers of a client
MAX_KEPT_BYTES = 64 << 20
"""Most bytes of the answers that a host keeps for one client."""


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
    """A write that has begun.

    Attributes:
        start: Time of the beginning.
        answer: Answer, or error without the frames in which it was raised: they hold arguments.
        num_bytes: Size of the answer.
    """

    def __init__(self) -> None:
        self.start = time.time()
        self.answer: Future[Any] = Future()
        self.num_bytes = 0

    def set_error(self, error: BaseException) -> None:
        self.answer.set_exception(copy.copy(error))


class _Client:
    """A client's writes whose answers it may ask for again."""

    def __init__(self, done: int = 0) -> None:
        self.done = done
        self.writes: dict[int, _Write] = {}

    def forget(self, done: int) -> None:
        if done > self.done:
            self.done = done
            for number in [number for number in self.writes if number < done]:
                del self.writes[number]

    def bound(self) -> None:
        """Forget the oldest answers while all together are too many or too large."""
        num_bytes = sum(write.num_bytes for write in self.writes.values())
        while len(self.writes) > _MAX_KEPT or num_bytes > MAX_KEPT_BYTES:
            oldest = min(self.writes)
            num_bytes -= self.writes[oldest].num_bytes
            self.forget(oldest + 1)


class CallHost(ABC):
    """Base of hosts: does each call once, checked. Any thread may call at any time.

    Args:
        facts: Facts about the tables of the host.
        verbs: by name.
        timeout_seconds: how long a write that comes again waits for the first one at most.
        placement: which keys the host holds; None: not known yet.

    Attributes:
        device: label of the server that this is on; empty: none.
    """

    device = ""

    def __init__(
        self,
        facts: HostFacts,
        verbs: Mapping[str, Verb],
        timeout_seconds: float = WAIT_SECONDS,
        placement: Placement | None = None,
    ) -> None:
        self.name, self._placement = facts.name, placement
        self._timeout_seconds = check_wait(type(self).__name__, timeout_seconds, facts.name)
        self._facts, self._verbs = facts, verbs
        self._clients: dict[int, _Client] = {}
        self._gone: dict[int, int] = {}  # in order: client -> the first number it may use again
        self._fenced: set[int] = set()  # apart: no number of clients that end drives a fence out
        self._running: dict[Future[Any], tuple[int, int]] = {}  # writes -> client and thread
        # Entered again by a cut that is collected, and so closed, inside a call.
        self._lock = threading.RLock()

    def do(self, call: Call) -> Any:
        """Do the call; a write that came before is not done again, and has the same answer.

        Raises:
            InvalidArgumentError: the call is not one of `host_verbs.py`; nothing was done.
        """
        is_write = self._check(call)
        if call.verb == BYE:
            return self.release_client(call.client, is_gone=True)
        if not is_write:
            return self._run(call)
        with self._lock:
            client = self._clients.get(call.client) or self._come_back(call)
            if call.sequence < client.done:
                raise AbortedError(
                    f"[{type(self).__name__}.do] expected calls from number {client.done} on, got "
                    f"{call.sequence}, whose answer is no longer kept (table {self.name!r})"
                )
            client.forget(call.done)
            write = client.writes.get(call.sequence)
            is_new = write is None
            if write is None:
                write = client.writes[call.sequence] = _Write()
                self._running[write.answer] = call.client, threading.get_ident()
        return self._begin(call, client, write) if is_new else self._answer(call, write)

    def _come_back(self, call: Call) -> _Client:
        """Return a client that is new, or was released; refuse one that is gone. Locked."""
        first = self._gone.get(call.client, 0)
        if first > _MAX_NUMBER or call.client in self._fenced:
            raise AbortedError(
                f"[{type(self).__name__}.do] expected calls of a client that is there, got "
                f"number {call.sequence} of one that is gone (table {self.name!r})"
            )
        self._gone.pop(call.client, None)
        client = self._clients[call.client] = _Client(first)
        return client

    def _begin(self, call: Call, client: _Client, write: _Write) -> Any:
        """Do a write for the first time, and keep its answer."""
        try:
            answer = self._run(call)
        except BaseException as error:
            write.set_error(error)
            raise
        else:
            write.num_bytes = _num_bytes(answer)
            write.answer.set_result(answer)
        finally:
            with self._lock:
                del self._running[write.answer]
                client.bound()
        return answer

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
            if verb.is_write and verb.keys_at is not None:
                keys = arguments[verb.keys_at]
                self._check_placement(name, keys[0] if isinstance(keys, tuple) else keys)
            return verb.is_write
        if name != BYE or arguments != ():
            raise self._error("a verb of a shard", short(name))
        return False

    def _check_placement(self, verb: str, keys: torch.Tensor) -> None:
        """Refuse to write keys that another shard holds: no lookup would find their rows here."""
        place = self._placement
        if place is None or place.num_shards == 1:
            return
        by_partition = place.kind == PartitionRouting.__name__
        if not by_partition and place.kind != FloorModRouting.__name__:
            return  # a routing of the caller's own
        number = _native.find_foreign(
            keys.data_ptr(), keys.numel(), by_partition, place.num_shards, place.shard
        )
        if number < keys.numel():
            raise InvalidArgumentError(
                f"[{type(self).__name__}.{verb}] expected keys of {place}, got key "
                f"{int(keys[number])} at place {number} {self._facts.end}"
            )

    def _error(self, expected: str, got: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"[{type(self).__name__}.do] expected {expected}, got {got} (table {self.name!r})"
        )

    def _answer(self, call: Call, write: _Write) -> Any:
        """Wait for the answer of a write that another thread may be doing."""
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

    def release_client(self, client: int, *, is_gone: bool = False) -> None:
        """Drop the answers kept for a client, whose writes stay done once. Thread-safe.

        Args:
            client: Number of the client.
            is_gone: Whether all later calls of the client are refused.
        """
        with self._lock:
            kept = self._clients.pop(client, None)
            first = _MAX_NUMBER + 1 if is_gone else self._gone.pop(client, 0)
            if kept is not None and not is_gone:
                first = max(kept.done, *(number + 1 for number in kept.writes), first)
            self._gone.pop(client, None)
            self._gone[client] = first
            while len(self._gone) > _MAX_GONE:
                del self._gone[next(iter(self._gone))]

    def fence(self, clients: Collection[int]) -> None:
        """Refuse all later writes of some clients, for ever. Thread-safe.

        Raises:
            FailedPreconditionError: There are too many clients that are refused; none was added.
        """
        with self._lock:
            new = set(clients) - self._fenced
            if len(self._fenced) + len(new) > MAX_FENCED:
                raise FailedPreconditionError(
                    f"[{type(self).__name__}.fence] expected at most {MAX_FENCED} clients that are "
                    f"refused, got {len(self._fenced) + len(new)} (table {self.name!r}); start the "
                    "server again"
                )
            self._fenced |= new
        for client in clients:
            self.release_client(client, is_gone=True)

    def running_writes(self, clients: Collection[int]) -> list[Future[Any]]:
        """Return the answers of writes of some clients that run on other threads. Thread-safe."""
        wanted, own = set(clients), threading.get_ident()
        with self._lock:
            running = self._running.items()
            return [answer for answer, (c, thread) in running if c in wanted and thread != own]

    @property
    def clients(self) -> set[int]:
        """Numbers of the clients for which answers are kept."""
        with self._lock:
            return set(self._clients)

    def clients_state(self) -> dict[str, Any]:
        """Return the last writes of each client as JSON accepts them, for a save.

        An answer that is no plain number or tuple of numbers is left out: a write that comes again
        after a restore is then refused, and not done twice.
        """
        with self._lock:
            return {str(number): _state_of(client) for number, client in self._clients.items()}

    def restore_clients(self, state: Mapping[str, Any]) -> None:
        """Set the last writes of the clients of a save, as `clients_state` returned them.

        Raises:
            DataLossError: The state is not that of clients.
        """
        try:
            clients = {int(number): _restored(entry) for number, entry in state.items()}
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise DataLossError(
                f"[{type(self).__name__}.restore_clients] expected the clients of a save, got "
                f"{short(state)}: {error} (table {self.name!r})"
            ) from error
        with self._lock:
            self._clients.update({n: c for n, c in clients.items() if n not in self._fenced})

    @abstractmethod
    def _run(self, call: Call) -> Any:
        """Do a call that was checked."""


def _num_bytes(answer: Any) -> int:
    """Bytes of the tensors in an answer."""
    if isinstance(answer, torch.Tensor):
        return answer.numel() * answer.element_size()
    if isinstance(answer, dict):
        return sum(map(_num_bytes, answer.values()))
    return sum(map(_num_bytes, answer)) if isinstance(answer, tuple | list) else 0


def _state_of(client: _Client) -> dict[str, Any]:
    """Return the writes of a client that have ended."""
    ended = {n: w.answer for n, w in client.writes.items() if w.answer.done()}
    answers = {n: answer.result() for n, answer in ended.items() if answer.exception() is None}
    plain = {str(n): answer for n, answer in answers.items() if _is_plain(answer)}
    lost = [number for number in ended if str(number) not in plain]
    return {"done": client.done, "answers": plain, "lost": lost}


def _is_plain(answer: Any) -> bool:
    """Whether JSON gives an answer back, but for a list in the place of a tuple."""
    if type(answer) is tuple:
        return all(type(number) is int for number in answer)
    return answer is None or type(answer) in (int, bool)


def _restored(entry: Mapping[str, Any]) -> _Client:
    client = _Client(int(entry["done"]))
    for number, answer in entry["answers"].items():
        write = client.writes[int(number)] = _Write()
        write.answer.set_result(tuple(answer) if isinstance(answer, list) else answer)
    for number in entry["lost"]:
        write = client.writes[int(number)] = _Write()
        write.set_error(
            AbortedError(
                f"[CallHost.do] expected a call whose answer is kept, got number {number}, which "
                "was done before the save that was restored"
            )
        )
    return client
