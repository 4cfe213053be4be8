"""The thread of a client that reads and writes the sockets of all its connections."""

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monolith.cluster.zmq.extra import load_zmq
from monolith.cluster.zmq.waker import Waker
from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.1
_CLOSE_SECONDS = 10.0


class Polled(ABC):
    """Sockets that a `ClientLoop` serves. Its thread alone calls these methods."""

    @abstractmethod
    def open_sockets(self, loop: "ClientLoop") -> None:
        """Make the sockets and register them with `loop.poller`."""

    @abstractmethod
    def work(self, ready: dict[Any, int]) -> None:
        """Write what waits, and read the sockets that are ready; called at least every tick."""

    @abstractmethod
    def close_sockets(self) -> None:
        """Close the sockets, and end all calls."""


class ClientLoop:
    """Serves connections on a thread of its own, until it is closed or the last one is removed.

    Attributes:
        zmq: the module of pyzmq.
        context: of the sockets.
        poller: has the sockets of all connections.
    """

    def __init__(self) -> None:
        self.zmq = load_zmq()
        self.context: Any = self.zmq.Context()
        self.poller: Any = self.zmq.Poller()
        self._waker = Waker()
        self.poller.register(self._waker.fd, self.zmq.POLLIN)
        self._polled: list[Polled] = []
        self._orders: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="monolith-client", daemon=True)
        self._thread.start()

    def add(self, polled: Polled) -> None:
        """Serve these sockets from now on."""

        def begin() -> None:
            self._polled.append(polled)
            polled.open_sockets(self)

        self.run_soon(begin)

    def remove(self, polled: Polled) -> None:
        """Close these sockets; returns when they are closed. Removing twice is fine."""
        removed = threading.Event()

        def end() -> None:
            try:
                if polled in self._polled:
                    self._polled.remove(polled)
                    polled.close_sockets()
                if not self._polled:
                    with self._lock:
                        self._is_closing = True
            finally:
                removed.set()

        with contextlib.suppress(FailedPreconditionError):  # a closed loop has closed the sockets
            self.run_soon(end)
            if threading.current_thread() is not self._thread:
                removed.wait(_CLOSE_SECONDS)

    def wake(self) -> None:
        """Let the thread work now. Any thread may call."""
        self._waker.wake()

    def run_soon(self, order: Callable[[], None]) -> None:
        """Let the thread call `order` before it serves sockets again. Any thread may call."""
        with self._lock:
            if self._is_closing:
                raise FailedPreconditionError(
                    "[ClientLoop] expected an open loop, got a closed one"
                )
            self._orders.append(order)
        self.wake()

    def close(self) -> None:
        """Close all sockets, and end the thread. Closing twice is fine."""
        with self._lock:
            self._is_closing = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while True:
                ready = dict(self.poller.poll(int(_TICK_SECONDS * 1000)))
                if self._waker.fd in ready:
                    self._waker.clear()
                with self._lock:
                    orders, self._orders = self._orders, []
                for order in orders:
                    order()
                if self._is_closing:
                    return
                for polled in list(self._polled):
                    polled.work(ready)
        except BaseException:
            _log.exception("the thread of the connections to servers ended by an error")
            raise
        finally:
            with self._lock:
                self._is_closing = True
            for polled in self._polled:
                polled.close_sockets()
            self.poller.unregister(self._waker.fd)
            self._waker.close()
            self.context.destroy(linger=0)
