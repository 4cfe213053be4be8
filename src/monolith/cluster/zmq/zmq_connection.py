"""`ZmqConnection`: the way to one server process, kept over lost connections and restarts."""

import collections
import concurrent.futures
import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from monolith.cluster.call_host import BYE, Call
from monolith.cluster.connection import Connection, HostHandle, Session
from monolith.cluster.servers import ps_label
from monolith.cluster.wire.error_codec import error_from_value
from monolith.cluster.wire.message import (
    HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    VERSION,
    Header,
    Kind,
    Message,
    Packed,
    header_bytes,
    pack,
    parse,
)
from monolith.cluster.wire.value_codec import bytes_of
from monolith.cluster.wire.verb_numbers import NUMBER_OF_VERB
from monolith.cluster.zmq.addresses import check_address
from monolith.cluster.zmq.client_loop import ClientLoop, Polled
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    MonolithError,
    UnavailableError,
)
from monolith.table.arguments import check_wait, time_text

_log = logging.getLogger(__name__)

_GREETING_SECONDS = 1.0  # between two greetings without an answer
_PING_SECONDS = 1.0
_ADDRESS_SECONDS = 0.2  # between two looks at the address of a server that is away
_WINDOW_MESSAGES = 64
_WINDOW_BYTES = 256 << 20
_EMPTY = pack(None)
_NO_MESSAGE = (InvalidArgumentError, KeyError, TypeError, ValueError, OverflowError)


@dataclass(frozen=True)
class ServerAddress:
    """A server of a job.

    Args:
        index: number of the server.
        num_servers: number of servers of the job.
        find: returns the address of the server now, at once; called again while it is away.
        keys: CURVE keys of the job; None sends in the clear.
        label: name of the server in messages; empty takes that of a parameter server.
    """

    index: int
    num_servers: int
    find: Callable[[], str]
    keys: CurveKeys | None = None
    label: str = ""


class _Outstanding:
    """A call without an answer."""

    __slots__ = ("call", "future", "handle", "is_urgent", "packed", "request")

    def __init__(
        self,
        handle: HostHandle,
        call: Call,
        packed: Packed,
        request: int,
        is_urgent: bool,
        future: "Future[Any]",
    ) -> None:
        self.handle, self.call, self.packed, self.request = handle, call, packed, request
        self.is_urgent = is_urgent
        self.future = future


class ZmqConnection(Connection, Polled):
    """Sends calls to one server, and keeps them until they have an answer.

    A call is sent again when the connection was lost; the server does a write once. When another
    start of the server answers, which has lost what the last one had, `on_new_life` restores it
    before the calls are sent again. Without it the waiting calls fail with `AbortedError`.
    Any thread may call at any time.

    Args:
        loop: serves the socket.
        server: where the server is.
        timeout_seconds: how long `send` waits for room in the window.
        call_seconds: how long after a call was sent the server may begin it.

    Attributes:
        label: label of the server.
        on_new_life: None, or what restores a server that started again; called on a thread of its
            own with a `Connection` that sends at once, while other calls wait.
    """

    def __init__(
        self,
        loop: ClientLoop,
        server: ServerAddress,
        *,
        timeout_seconds: float = 30.0,
        call_seconds: float = 150.0,
    ) -> None:
        self.label = server.label or ps_label(server.index)
        self.on_new_life = None
        self._loop, self._server = loop, server
        self._timeout_seconds = check_wait("ZmqConnection", timeout_seconds, self.label)
        self._deadline_ms = int(check_wait("ZmqConnection", call_seconds, self.label) * 1000)
        self._where = f"[connection to {self.label}]"
        self._session = secrets.randbits(63)
        self._requests = itertools.count(1)
        # Shared with callers, under the lock
        # Entered again by a caller that is collected, and says goodbye, inside of a call.
        self._lock = threading.RLock()
        self._has_room = threading.Condition(self._lock)
        self._calls: dict[int, _Outstanding] = {}
        self._by_id: dict[tuple[int, int], _Outstanding] = {}
        self._new: collections.deque[_Outstanding] = collections.deque()
        self._num_bytes = 0
        self._window = (_WINDOW_MESSAGES, _WINDOW_BYTES)
        self._most_bytes = (MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES)  # of a call, and of a frame
        self._failure: Exception | None = None
        self._away_since: float | None = time.time()
        self._reason = "no connection yet"
        # Of the loop's thread
        self._socket: Any = None
        self._monitor: Any = None
        self._outbox: collections.deque[list[Any]] = collections.deque()
        self._life: int | None = None
        self._reviving: int | None = None
        self._is_connected = self._is_welcome = self._is_writing = False
        self._received = 0
        self._last_sent = self._last_heard = self._last_greeting = self._last_look = 0.0
        self._address = ""
        loop.add(self)

    # Callers

    def send(self, handle: HostHandle, call: Call) -> "Future[Any]":
        """Send a call without waiting for its answer.

        A call that is on its way is not sent again: its answer is that of the first one.

        Raises:
            UnavailableError: the window has no room within the limit.
            FailedPreconditionError: the connection is closed, or the server refused it.
        """
        return self._send(handle, call, is_urgent=False)

    def _send(self, handle: HostHandle, call: Call, *, is_urgent: bool) -> "Future[Any]":
        packed = pack(call.arguments)
        with self._lock:
            self._check_usable()
            waiting = self._by_id.get((call.client, call.sequence))
            if waiting is not None and waiting.call.verb == call.verb:
                return waiting.future
            if not is_urgent and call.verb != BYE:
                self._wait_for_room(packed.num_bytes, call)
            answer = _Answer(self.state_text)
            item = _Outstanding(handle, call, packed, next(self._requests), is_urgent, answer)
            self._calls[item.request] = item
            self._by_id[call.client, call.sequence] = item
            self._num_bytes += packed.num_bytes
            self._new.append(item)
        self._loop.wake()
        return item.future

    def _check_usable(self) -> None:
        if self._failure is not None:
            failure = self._failure
            raise type(failure)(*failure.args) from failure

    def _wait_for_room(self, num_bytes: int, call: Call) -> None:
        """Wait until the window has room. Locked."""
        start = time.time()
        max_messages, max_bytes = self._window
        has_room = self._has_room.wait_for(
            lambda: (
                self._failure is not None
                or not self._calls
                or (len(self._calls) < max_messages and self._num_bytes + num_bytes <= max_bytes)
            ),
            self._timeout_seconds,
        )
        self._check_usable()
        if not has_room:
            raise UnavailableError(
                f"{self._where} expected answers to some of {len(self._calls)} calls "
                f"({self._num_bytes} bytes) before {call.verb!r} is sent, got none within "
                f"{self._timeout_seconds} seconds, since {time_text(start)}; {self.state_text()}"
            )

    def state_text(self) -> str:
        """Return whether the server answers, for messages."""
        since = self._away_since
        if since is None:
            return f"{self.label} is connected at {self._address}"
        return (
            f"{self.label} at {self._address or 'no known address'} is away since "
            f"{time_text(since)}: {self._reason}"
        )

    @property
    def away_seconds(self) -> float:
        """Seconds since the server was connected last, or since the begin; 0 while it is."""
        return max(0.0, time.time() - (self._away_since or time.time()))

    def close(self) -> None:
        """Say goodbye, and end all calls. Closing twice is fine."""
        self._loop.remove(self)

    # The loop's thread

    def open_sockets(self, loop: ClientLoop) -> None:
        """Connect, if the server has an address."""
        self._last_look = time.monotonic()
        try:
            self._address = check_address(self._where, self._server.find())
        except MonolithError as error:
            self._reason = str(error)
            return
        zmq, keys = loop.zmq, self._server.keys
        socket = loop.context.socket(zmq.DEALER)
        for option, number in (
            (zmq.LINGER, 200),
            (zmq.IMMEDIATE, 1),
            (zmq.SNDHWM, 0),
            (zmq.RCVHWM, 0),
            (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
            (zmq.RECONNECT_IVL, 50),
            (zmq.RECONNECT_IVL_MAX, 1000),
            (zmq.HEARTBEAT_IVL, 5000),
            (zmq.HEARTBEAT_TIMEOUT, 20000),
            (zmq.IPV6, "[" in self._address),
        ):
            socket.setsockopt(option, number)
        if keys is not None:
            socket.curve_serverkey = keys.server_public.encode()
            socket.curve_publickey = keys.client_public.encode()
            socket.curve_secretkey = keys.client_secret.encode()
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        failures = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        failures |= zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self._monitor = socket.get_monitor_socket(events | failures)
        self._socket = socket
        loop.poller.register(self._monitor, zmq.POLLIN)
        loop.poller.register(socket, zmq.POLLIN)
        socket.connect(self._address)

    def close_sockets(self) -> None:
        """Close the socket, and fail what waits."""
        if self._is_welcome:
            self._outbox.append(self._frames(Header(Kind.GOODBYE), _EMPTY))
            self._write()
        self._drop_sockets()
        self._fail(
            FailedPreconditionError(f"{self._where} expected an open connection, got a closed one")
        )

    def _drop_sockets(self) -> None:
        if self._socket is None:
            return
        self._loop.poller.unregister(self._socket)
        self._loop.poller.unregister(self._monitor)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._socket = self._monitor = None
        self._outbox.clear()
        self._is_connected = self._is_welcome = self._is_writing = False

    def work(self, ready: dict[Any, int]) -> None:
        """Serve the socket once."""
        if self._socket is not None and self._monitor in ready:
            self._read_events()
        if self._socket is not None and self._socket in ready:
            self._read_messages()
        with self._lock:
            new, self._new = self._new, collections.deque()
        if self._is_welcome:
            for item in new:
                self._post(item)
        now = time.monotonic()
        self._drop_cancelled()
        if not self._is_connected:
            if now - self._last_look > _ADDRESS_SECONDS:
                self._look_for_address(now)
        elif not self._is_welcome:
            if self._life is None or self._calls or self.is_watching:
                self._greet(now)
        elif now - max(self._last_sent, self._last_heard) > _PING_SECONDS:
            self._outbox.append(self._frames(Header(Kind.PING), _EMPTY))
        self._write()

    def _look_for_address(self, now: float) -> None:
        """Connect elsewhere if the server has moved."""
        self._last_look = now
        try:
            address = check_address(self._where, self._server.find())
        except MonolithError as error:
            self._reason = str(error)
            return
        if address != self._address or self._socket is None:
            self._drop_sockets()
            self.open_sockets(self._loop)

    def _read_events(self) -> None:
        from zmq.utils.monitor import recv_monitor_message

        zmq = self._loop.zmq
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._is_connected, self._is_welcome = True, False
                self._reason = "it has not answered the greeting yet"
                self._outbox.clear()
                self._last_greeting = 0.0
            elif event == zmq.EVENT_DISCONNECTED:
                if self._is_connected:
                    self._is_connected = False
                    self._note_away("the connection was lost")
            else:
                self._note_away(
                    "its handshake failed: it has other CURVE keys, or one side has none"
                )

    def _note_away(self, reason: str) -> None:
        self._is_welcome = False
        self._reason = reason
        if self._away_since is None:
            self._away_since = time.time()

    def _greet(self, now: float) -> None:
        if now - self._last_greeting < _GREETING_SECONDS:
            return
        self._last_greeting = now
        hello = pack({"index": self._server.index, "num_servers": self._server.num_servers})
        self._outbox.append(self._frames(Header(Kind.HELLO), hello))

    def _frames(self, header: Header, packed: Packed) -> list[Any]:
        """Return the frames of a message of this session."""
        client = header.client if header.kind == Kind.CALL else self._session
        header = header._replace(client=client, received=self._received)
        columns = [bytes_of(column) for column in packed.columns]
        return [header_bytes(header, packed), packed.body, *columns]

    def _post(self, item: _Outstanding) -> None:
        """Put a call into the outbox, if it may be sent now."""
        if self._reviving is not None and not item.is_urgent:
            return
        call = item.call
        if (error := self._too_large(item.packed, call)) is not None:
            with self._lock:
                self._forget(item.request)
            _settle(item.future, None, error)
            return
        header = Header(
            Kind.CALL,
            client=call.client,
            sequence=call.sequence,
            done=call.done,
            life=self._reviving or self._life or 0,
            host=item.handle.number,
            verb=NUMBER_OF_VERB[call.verb],
            deadline_ms=self._deadline_ms,
            request=item.request,
        )
        self._outbox.append(self._frames(header, item.packed))

    def _too_large(self, packed: Packed, call: Call) -> Exception | None:
        """Return the error of a call for which the server would end the connection."""
        most, most_of_frame = self._most_bytes
        frames = [len(packed.body), *(t.numel() * t.element_size() for t in packed.columns)]
        if packed.num_bytes + HEADER_BYTES <= most and max(frames) <= most_of_frame:
            return None
        return InvalidArgumentError(
            f"{self._where} expected calls of at most {most} bytes with tensors of at most "
            f"{most_of_frame}, got {call.verb!r} with {packed.num_bytes} and {max(frames)}; send "
            "less at once, or let the server have keys, or an ipc:// address, where tensors may "
            "be larger"
        )

    def _write(self) -> None:
        if self._socket is None or not self._outbox:
            return
        zmq = self._loop.zmq
        try:
            while self._outbox:
                self._socket.send_multipart(self._outbox[0], zmq.NOBLOCK, copy=False)
                self._outbox.popleft()
                self._last_sent = time.monotonic()
        except zmq.Again:
            pass  # the connection is lost, or not there yet: its next event, or the next tick
        if self._is_writing != bool(self._outbox):
            self._is_writing = bool(self._outbox)
            events = zmq.POLLIN | (zmq.POLLOUT if self._is_writing else 0)
            self._loop.poller.register(self._socket, events)

    def _read_messages(self) -> None:
        zmq = self._loop.zmq
        for _ in range(256):  # then let other connections have their turn
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._last_heard = time.monotonic()
            buffers = [frame.buffer for frame in frames]
            try:
                message = parse(buffers)
                self._read(message)
            except _NO_MESSAGE as error:
                _log.warning("%s sent what is no message: %s", self.label, error)

    def _read(self, message: Message) -> None:
        header = message.header
        if header.version != VERSION:
            self._fail(
                FailedPreconditionError(
                    f"{self._where} expected version {VERSION} of the protocol, got an answer of "
                    f"version {header.version}; upgrade the servers before the clients"
                )
            )
        elif header.kind == Kind.WELCOME:
            self._welcome(header.life, message.value())
        elif header.kind == Kind.REFUSED:
            self._refused(message.value())
        elif header.kind in (Kind.REPLY, Kind.ERROR):
            self._received += message.num_bytes
            self._answer(header, message)

    def _answer(self, header: Header, message: Message) -> None:
        with self._lock:
            item = self._forget(header.request)
        if item is None or item.future.cancelled():
            return
        try:
            value = message.value()
            error = error_from_value(value) if header.kind == Kind.ERROR else None
        except InvalidArgumentError as problem:
            value, error = None, problem
        _settle(item.future, value, error)

    def _forget(self, request: int) -> _Outstanding | None:
        """Take a call out of the window. Locked."""
        item = self._calls.pop(request, None)
        if item is not None:
            self._by_id.pop((item.call.client, item.call.sequence), None)
            self._num_bytes -= item.packed.num_bytes
            self._has_room.notify_all()
        return item

    def _drop_cancelled(self) -> None:
        with self._lock:
            cancelled = [item.request for item in self._calls.values() if item.future.cancelled()]
            for request in cancelled:
                self._forget(request)

    def _welcome(self, life: int, value: Any) -> None:
        max_messages, max_bytes = value["window_messages"], value["window_bytes"]
        self._window = max(1, int(max_messages)), max(1, int(max_bytes))
        most = int(value.get("message_bytes", MAX_MESSAGE_BYTES))
        self._most_bytes = most, int(value.get("frame_bytes", most))
        self._received = 0
        self._is_welcome, self._away_since = True, None
        if self._life in (None, life):
            self._life = life
            self._post_all()
        elif self._reviving != life:
            self._begin_new_life(life)
        else:
            self._post_all()  # the urgent ones

    def _post_all(self) -> None:
        with self._lock:
            self._new.clear()
            items = list(self._calls.values())
        for item in items:
            self._post(item)

    def _begin_new_life(self, life: int) -> None:
        """Let `on_new_life` restore the server before waiting calls are sent again."""
        self._reviving = life
        with self._lock:
            urgent = [item for item in self._calls.values() if item.is_urgent]
            for item in urgent:
                self._forget(item.request)
        for item in urgent:  # of an earlier new life, whose server is gone, too
            _settle(item.future, None, UnavailableError(f"{self._where} the server is gone"))
        if self.on_new_life is None:
            self._reviving, self._is_welcome, self._last_greeting = None, False, 0.0
            self._end_calls(
                AbortedError(
                    f"{self._where} expected the server that had the tables, got a new start of "
                    f"it at {self._address}, which is empty"
                )
            )
            return
        threading.Thread(None, self._revive, "monolith-revive", (life,), daemon=True).start()

    def _revive(self, life: int) -> None:
        assert self.on_new_life is not None
        try:
            self.on_new_life(_UrgentSession(self))
            error = None
        except Exception as problem:
            error = problem

        def end() -> None:
            if self._reviving != life:
                return  # the server started once more meanwhile
            self._reviving = None
            if error is None:
                self._life = life
                self._post_all()
            else:  # the next call makes another attempt, or a watch after a while
                self._is_welcome = False
                self._last_greeting = time.monotonic() if self.is_watching else 0.0
                self._end_calls(error)

        with contextlib.suppress(FailedPreconditionError):  # it was closed meanwhile
            self._loop.run_soon(end)

    def _refused(self, value: Any) -> None:
        reason, text = value["reason"], value["text"]
        if reason in ("session", "life"):
            if self._is_welcome:  # greet again: the server has started again, or forgot us
                self._is_welcome, self._last_greeting = False, 0.0
        elif reason in ("draining", "full"):
            self._note_away(text)
        else:
            self._fail(FailedPreconditionError(f"{self._where} {text}"))

    def _fail(self, error: Exception) -> None:
        """End all calls, and refuse later ones."""
        with self._lock:
            self._failure = self._failure or error
            self._has_room.notify_all()
        self._end_calls(error)

    def _end_calls(self, error: Exception) -> None:
        with self._lock:
            items = list(self._calls.values())
            for item in items:
                self._forget(item.request)
        for item in items:
            _settle(item.future, None, error)


class _UrgentSession(Session):
    """Sends to a server that is being restored: its calls pass those that wait."""

    def __init__(self, connection: ZmqConnection) -> None:
        self._connection, self.label = connection, connection.label

    def send(self, handle: HostHandle, call: Call) -> "Future[Any]":
        return self._connection._send(handle, call, is_urgent=True)


class _Answer(Future[Any]):
    """An answer on its way; a wait that ends too early says what the connection does."""

    def __init__(self, state_text: Callable[[], str]) -> None:
        super().__init__()
        self._state_text = state_text

    def result(self, timeout: float | None = None) -> Any:
        try:
            return super().result(timeout)
        except concurrent.futures.TimeoutError as error:
            if self.done():
                raise
            raise TimeoutError(self._state_text()) from error


def _settle(future: "Future[Any]", value: Any, error: Exception | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
