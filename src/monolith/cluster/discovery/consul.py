"""`ConsulServiceDiscovery`: addresses as instances of a service of Consul."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from monolith.cluster.discovery.consul_agent import ConsulAgent, ConsulEntry
from monolith.cluster.discovery.retries import (
    RETRY_MAX_BACKOFF_SECONDS,
    retry_with_socket_error,
)
from monolith.cluster.discovery.service_discovery import ServiceDiscovery, holder_text
from monolith.errors import FailedPreconditionError, MonolithError, NotFoundError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_NUM_REMOVALS = 20
_NUM_LOOKS = 42  # with the pauses below about 180 s
_FIRST_PAUSE_SECONDS = 0.05
_HOLD_PAUSE_SECONDS = 0.5
_JOIN_SECONDS = 10.0

Key = tuple[str, int]
"""Name and index of a process."""


class ConsulServiceDiscovery(ServiceDiscovery):
    """Discovery by the HTTP API of a Consul agent; needs no package.

    Each process is an instance of the service `consul_id`, with the tags `index`, `name` and `ip`.
    A thread gives signs of life; an instance without one for `ttl_seconds` is no longer returned.

    Args:
        consul_id: Name of the service: one for each job.
        retry_time_secs: Seconds between two looks whether an older registration is gone.
        agent: Agent to talk to; None takes that of `CONSUL_HTTP_ADDR` and `CONSUL_HTTP_TOKEN`.
        ttl_seconds: Seconds after the last sign of life for which an address counts.
        hold_seconds: Seconds after the last sign of life for which an index stays held; Consul
            takes up to twice the time. An agent allows no less than 10 unless it is told to.
        max_backoff_seconds: Returns the limit of the pause between two tries of a call.
    """

    def __init__(
        self,
        consul_id: str,
        retry_time_secs: float = 3.0,
        *,
        agent: ConsulAgent | None = None,
        ttl_seconds: float = 60.0,
        hold_seconds: float = 10.0,
        max_backoff_seconds: Callable[[], float] = lambda: RETRY_MAX_BACKOFF_SECONDS,
    ) -> None:
        self._agent = ConsulAgent() if agent is None else agent
        self._service, self._retry_seconds = consul_id, retry_time_secs
        self._ttl_seconds, self._hold_seconds = ttl_seconds, hold_seconds
        self._max_backoff_seconds = max_backoff_seconds
        self._lock = threading.Lock()  # of everything below
        self._entries: dict[Key, ConsulEntry] = {}
        self._sessions: dict[Key, str] = {}
        self._is_over = threading.Event()
        self._keeper: threading.Thread | None = None

    # Addresses

    def register(self, name: str, index: int, addr: str) -> None:
        """Register an address in place of an older one, and wait until Consul shows it.

        Raises:
            ValueError: The address is not host:port.
            OSError: Consul does not answer, or does not show the address within about 180 s.
        """
        host, port = _split(addr)
        entry = ConsulEntry(name, index, host, port)
        self._remove_older(entry)
        self._call(self._agent.register, self._service, entry, self._ttl_seconds)
        with self._lock:
            self._entries[name, index] = entry
        self._start_keeper()
        for number in range(_NUM_LOOKS):
            shown = _newest(self._lookup(), (name, index))
            if shown is not None and shown.address == addr:
                with self._lock:
                    self._entries[name, index] = shown
                return
            time.sleep(min(self._max_backoff_seconds(), _FIRST_PAUSE_SECONDS * 2**number))
        with self._lock:
            self._entries.pop((name, index), None)
        raise OSError("This machine is blacklisted by consul.")

    def _remove_older(self, new: ConsulEntry) -> None:
        """Remove registrations of the same index; one that stays is only logged."""
        for _ in range(_NUM_REMOVALS):
            older = [entry for entry in self._lookup() if _key(entry) == _key(new)]
            if not older:
                return
            for entry in older:
                self._call(self._agent.deregister, self._service, entry)
            if any(_key(entry) == _key(new) for entry in self._lookup()):
                time.sleep(self._retry_seconds)
        _log.warning("an older registration of %s %d stays until its time is over", *_key(new))

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Remove the registration of an address.

        Raises:
            ValueError: The address is not host:port.
            OSError: Consul does not answer.
        """
        host, port = _split(addr)
        with self._lock:
            self._entries.pop((name, index), None)
        entry = ConsulEntry(name, index, host, port)
        self._call(self._agent.deregister, self._service, entry)

    def query_all(self) -> dict[str, dict[int, str]]:
        """Return the addresses of all processes: name -> index -> address."""
        return _by_name(self._lookup())

    def query(self, name: str) -> dict[int, str]:
        """Return the addresses of all processes of a name, by index."""
        return self.query_all().get(name, {})

    def wait_change(
        self, name: str, known: Mapping[int, str], timeout_seconds: float
    ) -> dict[int, str]:
        """Return the addresses of a name as soon as they differ from those that are known.

        The agent answers when something has changed, so that nothing is asked at intervals.
        """
        end = time.monotonic() + timeout_seconds
        position = 0
        while True:
            left = max(0.0, end - time.monotonic())
            entries, new = self._call(self._agent.lookup_since, self._service, position, left)
            addresses = _by_name(entries).get(name, {})
            if addresses != known or time.monotonic() >= end:
                return addresses
            if not new or new <= position:  # a proxy, or an agent that began anew
                time.sleep(min(_HOLD_PAUSE_SECONDS, max(0.0, end - time.monotonic())))
            position = new if new >= position else 0

    def deregister_all(self) -> None:
        """Remove all processes of the service."""
        for entry in self._lookup():
            self._call(self._agent.deregister, self._service, entry)
        with self._lock:
            self._entries.clear()

    def _lookup(self) -> list[ConsulEntry]:
        return self._call(self._agent.lookup, self._service)

    def _call(self, call: Callable[..., _T], *arguments: Any) -> _T:
        return retry_with_socket_error(partial(call, *arguments), self._max_backoff_seconds())

    # Holds

    def hold(self, name: str, index: int) -> None:
        """Take an index for this process, until `close` or its end, however it ends.

        If the session of another process has the index, the call waits until that session can have
        ended: a little longer than twice `hold_seconds`.

        Raises:
            FailedPreconditionError: A living process has the index; the text names the process.
            OSError: Consul does not answer.
        """
        key, seconds = (name, index), 2 * self._hold_seconds + 1
        with self._lock:
            if key in self._sessions:
                return
        session = self._call(self._agent.create_session, holder_text(), self._hold_seconds)
        end, is_told = time.monotonic() + seconds, False
        while not self._call(self._takes, key, session):
            holder = self._call(self._agent.text_of, self._lock_key(key))
            holder = holder[:200] or "a process without a name"
            if time.monotonic() >= end:
                self._call(self._agent.destroy_session, session)
                raise FailedPreconditionError(
                    f"[ConsulServiceDiscovery.hold] expected that no process is {name} {index}, "
                    f"got one that is alive: {holder} (service {self._service!r}); end it first, "
                    "or choose another index or another name of the job"
                )
            if not is_told:
                is_told = True
                _log.warning(
                    "waiting up to %.0f s for the session of %s, which is %s %d, to end",
                    *(seconds, holder, name, index),
                )
            time.sleep(min(_HOLD_PAUSE_SECONDS, self._hold_seconds / 3))
            if not self._call(self._agent.renew_session, session):  # this process stood still
                session = self._call(self._agent.create_session, holder_text(), self._hold_seconds)
        with self._lock:
            self._sessions[key] = session
        self._start_keeper()

    def _takes(self, key: Key, session: str) -> bool:
        """Take a key, unless another session has it, or this one has ended."""
        try:
            return self._take(key, session)
        except NotFoundError:
            return False

    def _take(self, key: Key, session: str) -> bool:
        return self._agent.acquire(self._lock_key(key), session, holder_text())

    def _lock_key(self, key: Key) -> str:
        return f"monolith/{self._service}/{key[0]}/{key[1]}"

    # Signs of life

    def _start_keeper(self) -> None:
        with self._lock:
            if self._keeper is None and not self._is_over.is_set():
                self._keeper = threading.Thread(
                    target=self._keep, name="monolith-consul", daemon=True
                )
                self._keeper.start()

    def _keep(self) -> None:
        """Give signs of life until the end."""
        next_entries = time.monotonic() + self._ttl_seconds / 2
        while not self._is_over.wait(min(self._ttl_seconds / 2, self._hold_seconds / 3)):
            with self._lock:
                entries, sessions = dict(self._entries), dict(self._sessions)
            for key, session in sessions.items():
                self._try(self._renew, key, session)
            if time.monotonic() >= next_entries:
                next_entries = time.monotonic() + self._ttl_seconds / 2
                for entry in entries.values():
                    self._try(self._refresh, entry)

    def _try(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except (OSError, MonolithError) as error:  # the next time tries again
            _log.warning("no sign of life to Consul: %s", error)

    def _renew(self, key: Key, session: str) -> None:
        if self._agent.renew_session(session):
            return
        new = self._agent.create_session(holder_text(), self._hold_seconds)
        if self._take(key, new):
            with self._lock:
                self._sessions[key] = new
            return
        self._agent.destroy_session(new)
        with self._lock:
            self._sessions.pop(key, None)
            self._entries.pop(key, None)
        _log.error(
            "%s %d is no longer registered by this process: %s took its place while the session "
            "was lost; end one of the two",
            *key,
            self._agent.text_of(self._lock_key(key)),
        )

    def _refresh(self, entry: ConsulEntry) -> None:
        """Give a sign of life; an entry that was removed for a newer one does not come back."""
        key = _key(entry)
        if self._agent.refresh(self._service, entry):
            return
        with self._lock:
            is_registered = self._entries.get(key) == entry
        if not is_registered:
            return
        newest = _newest(self._agent.lookup(self._service), key)
        if (
            newest is None or newest.order <= entry.order
        ):  # the agent was started again, and has lost its state
            self._agent.register(self._service, entry, self._ttl_seconds)
            return
        with self._lock:
            self._entries.pop(key, None)
        _log.error("%s %d is no longer registered by this process, but at %s", *key, newest.address)

    def close(self) -> None:
        """Give back what `hold` took, and end the signs of life. Closing twice is fine."""
        self._is_over.set()
        with self._lock:
            keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.join(_JOIN_SECONDS)
        with self._lock:  # also those that the thread has just made
            sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            self._try(self._agent.destroy_session, session)


def _key(entry: ConsulEntry) -> Key:
    return entry.name, entry.index


def _newest(entries: list[ConsulEntry], key: Key) -> ConsulEntry | None:
    """Return the newest of several registrations of an index."""
    of_index = [entry for entry in entries if _key(entry) == key]
    return max(of_index, key=lambda entry: entry.order, default=None)


def _by_name(entries: list[ConsulEntry]) -> dict[str, dict[int, str]]:
    """Return name -> index -> address; the newest of several registrations of an index counts."""
    names: dict[str, dict[int, str]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.name, entry.index, entry.order)):
        names.setdefault(entry.name, {})[entry.index] = entry.address
    return names


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.partition(":")
    if not host or not port.isascii() or not port.isdecimal():
        raise ValueError(f"Invalid addr: {address}")
    return host, int(port)
