"""`AddressBook`: the addresses of servers for a thread that must not wait for a discovery."""

import logging
import threading
import time
from collections.abc import Mapping

from monolith.cluster.discovery.service_discovery import ServiceDiscovery
from monolith.errors import MonolithError, NotFoundError

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 2.0
_IDLE_SECONDS = 2.0  # without a question, after which the thread ends


class AddressBook:
    """Answers from memory, and asks the discovery on a thread of its own while somebody asks.

    Clients ask for the address of a server that they are not connected to. While all are
    connected, nobody asks, and the discovery has no work. Thread-safe.

    Args:
        discovery: Discovery, closed by the caller.
        name: Kind of the processes.
    """

    def __init__(self, discovery: ServiceDiscovery, name: str) -> None:
        self._discovery, self._name = discovery, name
        self._lock = threading.Lock()
        self._addresses: Mapping[int, str] = {}
        self._failure: Exception | None = None
        self._last_question = 0.0
        self._thread: threading.Thread | None = None

    def address(self, number: int) -> str:
        """Return the last known address of a process, without waiting.

        Raises:
            NotFoundError: The process has no address that is known yet.
        """
        with self._lock:
            self._last_question = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="monolith-addresses", daemon=True
                )
                self._thread.start()
            address, failure = self._addresses.get(number), self._failure
        if not address:
            why = "none yet" if failure is None else f"no answer of the discovery: {failure}"
            raise NotFoundError(
                f"[find_servers] expected {self._name} {number} to be registered, got {why}"
            )
        return address

    def _run(self) -> None:
        try:
            self._ask_until_idle()
        except Exception as error:
            with self._lock:
                self._failure = error
            raise
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None  # the next question starts another one

    def _ask_until_idle(self) -> None:
        known: dict[int, str] | None = None
        pause = 0.0
        while True:
            with self._lock:
                if time.monotonic() - self._last_question > _IDLE_SECONDS:
                    self._thread = None
                    return
            try:
                known = (
                    self._discovery.query(self._name)
                    if known is None
                    else self._discovery.wait_change(self._name, known, _WAIT_SECONDS)
                )
            except (OSError, ValueError, MonolithError) as error:
                pause = min(max(0.1, 2 * pause), _MAX_PAUSE_SECONDS)
                _log.warning("no addresses of %s: %s", self._name, error)
                with self._lock:
                    self._failure = error
                time.sleep(pause)
                continue
            pause = 0.0
            with self._lock:
                self._addresses, self._failure = known, None
