"""`ServiceCaller`: calls a process of the data service, without waiting if need be."""

import concurrent.futures
import contextlib
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from monolith.cluster.call_host import BYE, Call
from monolith.cluster.connection import HostHandle, Session
from monolith.cluster.zmq.addresses import check_address
from monolith.cluster.zmq.client_loop import ClientLoop
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.cluster.zmq.zmq_connection import ServerAddress, ZmqConnection
from monolith.errors import UnavailableError

_SCHEME = "grpc://"  # of targets in the reference system


def service_address(address: str) -> str:
    """Return the address of a process of the data service, with or without `grpc://`.

    Raises:
        InvalidArgumentError: The text is no address.
    """
    return check_address("[data service]", address.removeprefix(_SCHEME))


class ServiceCaller:
    """Sends calls to one process, and keeps them until they have an answer. Thread-safe.

    A process that starts again gets the calls that wait, after those of `on_new_life`.

    Args:
        loop: Serves the socket.
        address: Where the process listens.
        label: Name of the process in messages.
        keys: CURVE keys of the job; None sends in the clear.
        on_new_life: Called when the process has started again.

    Attributes:
        address: Where the process listens.
        label: Name of the process in messages, with its address.
    """

    def __init__(
        self,
        loop: ClientLoop,
        address: str,
        label: str,
        keys: CurveKeys | None = None,
        on_new_life: Callable[[Session], None] | None = None,
    ) -> None:
        self.address = service_address(address)
        self.label = f"{label} at {self.address}"
        server = ServerAddress(0, 1, lambda: self.address, keys, label=label)
        self._connection = ZmqConnection(loop, server)
        self._connection.on_new_life = on_new_life or _go_on
        self._handle = HostHandle()
        self._client = secrets.randbits(63)
        self._lock = threading.Lock()
        self._next = 0
        self._running: dict[int, None] = {}

    @property
    def away_seconds(self) -> float:
        """Seconds since the process has answered a greeting last; 0 while it is connected."""
        return self._connection.away_seconds

    def state_text(self) -> str:
        """Return whether the process answers, for messages."""
        return self._connection.state_text()

    def watch(self) -> None:
        """Call `on_new_life` also while no call waits."""
        self._connection.is_watching = True

    def new_call(self, verb: str, *arguments: Any) -> Call:
        """Return a call with the next number, which was not sent."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._running[number] = None
            return Call(self._client, number, next(iter(self._running)), verb, arguments)

    def start(self, verb: str, *arguments: Any) -> "Future[Any]":
        """Send a call without waiting for its answer."""
        call = self.new_call(verb, *arguments)
        try:
            future = self._connection.send(self._handle, call)
        except BaseException:
            self._forget(call.sequence)
            raise
        future.add_done_callback(lambda _: self._forget(call.sequence))
        return future

    def send(self, session: Session, verb: str, *arguments: Any) -> Any:
        """Send a call by a session of `on_new_life`, and return its answer."""
        call = self.new_call(verb, *arguments)
        try:
            return session.send(self._handle, call).result(30.0)
        finally:
            self._forget(call.sequence)

    def call(self, verb: str, *arguments: Any, seconds: float = 30.0) -> Any:
        """Return the answer of a call.

        Raises:
            UnavailableError: There is none within some seconds.
        """
        future = self.start(verb, *arguments)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise UnavailableError(
                f"[data service] expected an answer to {verb!r} of {self.label} within "
                f"{seconds:g} seconds, got none: {self.state_text()}"
            ) from error

    def _forget(self, number: int) -> None:
        with self._lock:
            self._running.pop(number, None)

    def close(self) -> None:
        """Say goodbye, and close the connection. Closing twice is fine."""
        if self.away_seconds == 0.0:
            with contextlib.suppress(Exception):  # nobody is left for the error
                call = Call(self._client, 0, 0, BYE, ())
                self._connection.send(self._handle, call).result(1.0)
        self._connection.close()


def _go_on(session: Session) -> None:
    """Send the calls that wait to the new process."""
