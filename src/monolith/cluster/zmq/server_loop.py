"""`ServerLoop`: receives messages on a socket, lets a server do their calls, and answers."""

import collections
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from monolith.cluster.call_host import BYE, Call
from monolith.cluster.wire.error_codec import error_to_value
from monolith.cluster.wire.message import (
    HEADER_BYTES,
    VERSION,
    Header,
    Kind,
    Message,
    Packed,
    header_bytes,
    pack,
    parse,
    version_of,
)
from monolith.cluster.wire.value_codec import bytes_of
from monolith.cluster.wire.verb_numbers import VERB_OF_NUMBER
from monolith.cluster.zmq.addresses import check_address, is_local, numeric
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.cluster.zmq.extra import load_zmq
from monolith.cluster.zmq.sessions import Limits, Session, Sessions
from monolith.cluster.zmq.waker import Waker
from monolith.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.25
_CLOSE_SECONDS = 10.0
_QUICK_BYTES = 16 << 10  # calls up to this size cost less than a change of threads
_GREETING_BYTES = 1 << 10
_HANDSHAKE_SECONDS = 30
_LOGGED_REFUSALS = 20  # of a kind; all are counted
_EMPTY = pack(None)


class CalledServer(Protocol):
    """What does the calls: a `ServerHost`. Thread-safe."""

    index: int
    num_servers: int
    label: str
    life: int

    def is_called(self, index: int, num_servers: int) -> bool:
        """Whether a client that looks for this server of so many means this one."""

    def do(self, host: int, call: Call) -> Any:
        """Do a call of a host; a quick one may return a `Future` of its answer."""

    def is_quick(self, host: int, verb: str) -> bool:
        """Whether a small call of this verb takes less time than a change of threads."""

    def release_client(self, client: int) -> None:
        """Free what a client holds that is gone."""

    def tick(self) -> None:
        """Answer calls that have waited long enough; called several times a second."""

    def end_waits(self) -> None:
        """Answer all calls that wait."""


class ServerLoop:
    """Serves calls on an address until it is closed. Start it with `with` or `start`.

    One thread receives and answers; calls that are not small are done by a pool.

    Args:
        server: does the calls.
        address: where to listen, as tcp://127.0.0.1:0 or ipc:///path.
        keys: CURVE keys of the job; None talks in the clear.
        is_insecure: whether an address that others can reach may be served without keys.
        limits: what clients may ask.
        num_threads: threads of the pool.
        versions: versions of the protocol that are served.

    Attributes:
        address: where the loop listens, with its port.
        counts: what was refused and done so far, by name.

    Raises:
        InvalidArgumentError: the address needs keys, or is none.
        UnavailableError: the address is in use, or not of this machine.
    """

    def __init__(
        self,
        server: CalledServer,
        address: str,
        *,
        keys: CurveKeys | None = None,
        is_insecure: bool = False,
        limits: Limits | None = None,
        num_threads: int = 2,
        versions: tuple[int, ...] = (VERSION,),
    ) -> None:
        self._where = f"[server {server.label}]"
        self._server, self._versions = server, versions
        address = check_address(self._where, address, with_any_port=True)
        # Keys, or the permissions of a Unix socket, say who can send.
        is_trusted = keys is not None or address.startswith("ipc://")
        self._limits = (limits or Limits()).with_frames(is_trusted=is_trusted)
        if keys is None and not is_insecure and not is_local(address):
            raise InvalidArgumentError(
                f"{self._where} expected keys for an address that other machines can reach, got "
                f"none ({address}); make keys with `monolith keys new FILE` and pass --keys FILE, "
                "or pass --insecure in a network where everybody may read and write the tables"
            )
        self._zmq = load_zmq()
        self._context: Any = self._zmq.Context()
        self._counts: collections.Counter[str] = collections.Counter()
        self._auth: Any = None
        try:
            self._authenticate(keys)
            self._socket = self._listen(address, keys)
        except BaseException:
            self._end_context()
            raise
        self.address: str = self._socket.getsockopt(self._zmq.LAST_ENDPOINT).decode().rstrip("\0")
        self._sessions = Sessions(self._limits)
        self._waker = Waker()
        self._answers: queue.SimpleQueue[tuple[Session, Message, Kind, Packed]] = (
            queue.SimpleQueue()
        )
        self._late_answers: queue.SimpleQueue[tuple[Session, Message, Future[Any]]] = (
            queue.SimpleQueue()
        )
        self._pool = ThreadPoolExecutor(num_threads, "monolith-server")
        self._num_running = 0
        self._is_draining = self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="monolith-loop", daemon=True)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of messages by what became of them."""
        return MappingProxyType(dict(self._counts))

    @property
    def num_sessions(self) -> int:
        """Number of clients."""
        return len(self._sessions)

    @property
    def is_running(self) -> bool:
        """Whether the thread serves."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def drain(self, timeout_seconds: float) -> bool:
        """Refuse new calls and wait for the end of those that run; whether all ended."""
        self._is_draining = True
        self._server.end_waits()
        end = time.monotonic() + timeout_seconds
        idle = threading.Event()
        while self._num_running or not (self._answers.empty() and self._late_answers.empty()):
            self._waker.wake()
            if time.monotonic() > end or not self._thread.is_alive():
                return False
            idle.wait(0.01)
        return True

    def close(self) -> None:
        """End the thread, and close the socket; calls that run are finished. Twice is fine."""
        self._is_closing = True
        self._waker.wake()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        self._pool.shutdown()
        if not self._socket.closed:
            self._socket.close(linger=0)
            self._end_context()
            self._waker.close()

    def _end_context(self) -> None:
        if self._auth is not None:
            self._auth.stop()
        self._context.destroy(linger=0)

    def __enter__(self) -> "Self":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # The socket

    def _authenticate(self, keys: CurveKeys | None) -> None:
        """Let only holders of the job's client key in: CURVE alone accepts any client key."""
        if keys is None:
            return
        from zmq.auth.thread import ThreadAuthenticator

        self._auth = ThreadAuthenticator(self._context)
        self._auth.start()
        self._auth.configure_curve_callback(credentials_provider=_Credentials(keys))

    def _listen(self, address: str, keys: CurveKeys | None) -> Any:
        zmq = self._zmq
        socket = self._context.socket(zmq.ROUTER)
        for option, number in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, 0),  # windows bound what waits
            (zmq.RCVHWM, 0),
            (zmq.MAXMSGSIZE, self._limits.frame_bytes),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.HANDSHAKE_IVL, _HANDSHAKE_SECONDS * 1000),
            (zmq.HEARTBEAT_IVL, 5000),
            (zmq.HEARTBEAT_TIMEOUT, 20000),
            (zmq.IPV6, "[" in address),
        ):
            socket.setsockopt(option, number)
        if keys is not None:
            socket.curve_server = True
            socket.curve_secretkey = keys.server_secret.encode()
        try:
            socket.bind(numeric(address))
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise UnavailableError(
                f"{self._where} expected to listen at {address}, got: {error}; another process "
                "may have the address"
            ) from error
        return socket

    # The thread

    def _run(self) -> None:
        zmq = self._zmq
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._waker.fd, zmq.POLLIN)
        next_tick = time.monotonic() + _TICK_SECONDS
        try:
            while not self._is_closing:
                ready = dict(poller.poll(int(_TICK_SECONDS * 1000)))
                if self._waker.fd in ready:
                    self._waker.clear()
                    self._send_answers()
                if self._socket in ready:
                    self._receive()
                if time.monotonic() >= next_tick:
                    next_tick = time.monotonic() + _TICK_SECONDS
                    self._server.tick()
                    self._end_leases()
            self._send_answers()
        except BaseException:
            _log.exception("%s: the thread ended by an error", self._server.label)
            raise

    def _receive(self) -> None:
        zmq = self._zmq
        for _ in range(256):  # then answers have their turn
            try:
                route, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            buffers = [frame.buffer for frame in frames]
            try:
                version = version_of(buffers)
                if version is not None and version not in self._versions:
                    self._refuse_version(route.bytes, version)
                    continue
                self._take(route.bytes, parse(buffers))
            except InvalidArgumentError as error:
                self._note_refusal("bad_messages", str(error))
            if not self._answers.empty():
                self._send_answers()

    def _note_refusal(self, name: str, text: str) -> None:
        self._counts[name] += 1
        if self._counts[name] <= _LOGGED_REFUSALS:
            _log.warning("%s refused a message: %s", self._server.label, text)

    def _refuse_version(self, route: bytes, version: int) -> None:
        low, high = min(self._versions), max(self._versions)
        text = f"expected version {low} to {high} of the protocol, got {version}; upgrade the " + (
            "servers before the clients" if version > high else "client"
        )
        self._note_refusal("other_versions", text)
        self._refuse(route, Header(Kind.HELLO, high), "version", text)

    def _refuse(self, route: bytes, header: Header, reason: str, text: str) -> None:
        packed = pack({"reason": reason, "text": text})
        self._post(route, header, Kind.REFUSED, packed)

    def _post(self, route: bytes, header: Header, kind: Kind, packed: Packed) -> None:
        """Send an answer to a message with this header."""
        head = header_bytes(
            header._replace(kind=kind, life=self._server.life, done=0, sequence=header.sequence),
            packed,
        )
        zmq = self._zmq
        columns = [bytes_of(column) for column in packed.columns]
        try:
            self._socket.send_multipart(
                [route, head, packed.body, *columns], zmq.NOBLOCK, copy=False
            )
        except zmq.ZMQError as error:  # the client is gone; it asks again when it is back
            self._counts["lost_answers"] += 1
            _log.debug("%s could not answer: %s", self._server.label, error)

    def _take(self, route: bytes, message: Message) -> None:
        header, now = message.header, time.monotonic()
        if header.kind == Kind.HELLO:
            self._greet(route, message, now)
            return
        session = self._sessions.of_route(route)
        if session is None:
            if header.kind in (Kind.CALL, Kind.PING):
                self._counts["unknown_sessions"] += 1
                self._refuse(route, header, "session", "expected a greeting before calls")
            return
        session.hear(now, header.received)
        if header.kind == Kind.CALL:
            self._call(session, message, now)
        elif header.kind == Kind.PING:
            self._post(route, header, Kind.PONG, _EMPTY)
        elif header.kind == Kind.GOODBYE:
            self._release(session)
        else:
            self._note_refusal("bad_messages", f"expected a client's message, got {header.kind}")
        self._begin_waiting(session)

    def _begin_waiting(self, session: Session) -> None:
        while session.waiting and session.may_begin(self._limits):
            self._begin(session, *session.waiting.popleft())

    def _greet(self, route: bytes, message: Message, now: float) -> None:
        header, value = message.header, _greeting_of(message)
        if self._is_draining:
            self._refuse(route, header, "draining", f"{self._server.label} is about to end")
            return
        if not self._server.is_called(value["index"], value["num_servers"]):
            text = (
                f"expected a client of server {self._server.index} of {self._server.num_servers}, "
                f"got one that looks for {value!r}; check the order of the addresses"
            )
            self._note_refusal("other_servers", text)
            self._refuse(route, header, "server", text)
            return
        session = self._sessions.greet(header.client, route, now)
        if session is None:
            self._note_refusal("too_many_clients", f"{len(self._sessions)} clients are connected")
            self._refuse(route, header, "full", f"it has {len(self._sessions)} clients already")
            return
        self._counts["greetings"] += 1
        limits = self._limits
        welcome = {
            "label": self._server.label,
            "window_messages": limits.window_messages,
            "window_bytes": limits.window_bytes,
            "lease_seconds": limits.lease_seconds,
            "message_bytes": limits.message_bytes,
            "frame_bytes": limits.frame_bytes,
        }
        self._post(route, header, Kind.WELCOME, pack(welcome))

    def _call(self, session: Session, message: Message, now: float) -> None:
        header, limits = message.header, self._limits
        if header.life != self._server.life:
            self._counts["other_lives"] += 1
            self._refuse(session.route, header, "life", "expected a greeting of this start")
            return
        if self._is_draining:
            self._refuse(session.route, header, "draining", f"{self._server.label} ends")
            return
        is_full = session.num_calls >= limits.window_messages or (
            session.num_calls and session.call_bytes + message.num_bytes > limits.window_bytes
        )
        if is_full:
            text = f"expected at most {limits.window_messages} calls at once, got more"
            self._note_refusal("beyond_window", text)
            self._refuse(session.route, header, "window", text)
            return
        if message.num_bytes > limits.message_bytes:
            text = f"expected a call of at most {limits.message_bytes} bytes, got one of "
            text += str(message.num_bytes)
            self._refuse_call(session, header, "too_large", InvalidArgumentError(text))
            return
        if not session.admit(header.client, header.host, limits):
            text = f"expected at most {limits.callers} callers of one client, got one more; close "
            text += "tables and groups that are not used any more"
            self._refuse_call(session, header, "too_many_callers", FailedPreconditionError(text))
            return
        session.num_calls += 1
        session.call_bytes += message.num_bytes
        self._counts["calls"] += 1
        session.waiting.append((message, now))

    def _refuse_call(self, session: Session, header: Header, name: str, error: OpError) -> None:
        """Answer a call, which is not done, by an error."""
        self._note_refusal(name, str(error))
        value = error_to_value(type(error)(f"{self._where} {error}"))
        self._post(session.route, header, Kind.ERROR, pack(value))

    def _begin(self, session: Session, message: Message, arrival: float) -> None:
        verb = VERB_OF_NUMBER.get(message.header.verb, "")
        if message.num_bytes <= _QUICK_BYTES and self._server.is_quick(message.header.host, verb):
            self._answer_quick(session, message, verb, arrival)
            return
        self._num_running += 1
        session.num_running += 1
        self._pool.submit(self._work, session, message, verb, arrival)

    def _work(self, session: Session, message: Message, verb: str, arrival: float) -> None:
        """Do a call on a thread of the pool."""
        kind, packed = self._done(verb, lambda: self._do(verb, message, arrival))
        self._answers.put((session, message, kind, packed))
        self._waker.wake()

    def _answer_quick(self, session: Session, message: Message, verb: str, arrival: float) -> None:
        """Do a call now; one that waits for others is answered at the end of its wait."""
        late: list[Future[Any]] = []

        def call() -> Any:
            answer = self._do(verb, message, arrival)
            if isinstance(answer, Future):
                late.append(answer)
                return None
            return answer

        kind, packed = self._done(verb, call)
        if late:
            late[0].add_done_callback(functools.partial(self._note_late, session, message))
        else:
            self._answer(session, message, kind, packed)

    def _note_late(self, session: Session, message: Message, future: "Future[Any]") -> None:
        self._late_answers.put((session, message, future))
        self._waker.wake()

    def _do(self, verb: str, message: Message, arrival: float) -> Any:
        header = message.header
        waited = (time.monotonic() - arrival) * 1000
        if header.deadline_ms and waited > header.deadline_ms:
            raise DeadlineExceededError(
                f"{self._where} expected to begin {verb!r} within {header.deadline_ms} ms, "
                f"got to it after {waited:.0f}; it was not done"
            )
        if not verb:
            raise InvalidArgumentError(
                f"{self._where} expected the number of a verb, got {header.verb}"
            )
        call = Call(header.client, header.sequence, header.done, verb, message.value())
        return self._server.do(header.host, call)

    def _done(self, verb: str, call: Callable[[], Any]) -> tuple[Kind, Packed]:
        """Do a call; any error is its answer."""
        try:
            return Kind.REPLY, pack(call())
        except BaseException as error:
            if not isinstance(error, Exception):
                _log.exception("%s: %s ended by an error", self._server.label, verb)
            return Kind.ERROR, pack(error_to_value(error))

    def _send_answers(self) -> None:
        while not self._late_answers.empty():
            session, message, future = self._late_answers.get_nowait()
            self._answer(session, message, *self._done("", future.result))
        while True:
            try:
                session, message, kind, packed = self._answers.get_nowait()
            except queue.Empty:
                return
            session.num_running -= 1
            self._answer(session, message, kind, packed)
            self._begin_waiting(session)
            self._num_running -= 1  # last: `drain` waits for those that have begun meanwhile

    def _answer(self, session: Session, message: Message, kind: Kind, packed: Packed) -> None:
        session.num_calls = max(0, session.num_calls - 1)
        session.call_bytes = max(0, session.call_bytes - message.num_bytes)
        if VERB_OF_NUMBER.get(message.header.verb) == BYE:
            session.callers.discard((message.header.client, message.header.host))
        session.sent(HEADER_BYTES + packed.num_bytes)
        if kind == Kind.ERROR:
            self._counts["errors"] += 1
        self._post(session.route, message.header, kind, packed)

    def _end_leases(self) -> None:
        now = time.monotonic()
        for session in self._sessions.expired(now):
            self._counts["ended_leases"] += 1
            _log.warning(
                "%s heard nothing of a client for %s seconds, and forgets it",
                self._server.label,
                self._limits.lease_seconds,
            )
            self._release(session)

    def _release(self, session: Session) -> None:
        self._sessions.remove(session)
        session.waiting.clear()
        for client in {client for client, _ in session.callers}:
            self._pool.submit(self._server.release_client, client)


def _greeting_of(message: Message) -> Any:
    """Return the value of a greeting, which may come from anybody.

    Raises:
        InvalidArgumentError: the value is none of a greeting.
    """
    value: Any = message.value() if message.num_bytes <= _GREETING_BYTES else None
    is_greeting = isinstance(value, dict) and value.keys() == {"index", "num_servers"}
    if not is_greeting or {type(number) for number in value.values()} != {int}:
        raise InvalidArgumentError(
            f"[server] expected a greeting with the numbers index and num_servers, got another "
            f"value of {len(message.body)} bytes"
        )
    return value


class _Credentials:
    """Says to pyzmq which clients may connect."""

    def __init__(self, keys: CurveKeys) -> None:
        self._public = keys.client_public.encode()

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._public
