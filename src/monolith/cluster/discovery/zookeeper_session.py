"""`ZooKeeperSession`: nodes and watches of one process in ZooKeeper."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from monolith.cluster.discovery.service_discovery import DiscoveryError, holder_text
from monolith.errors import FailedPreconditionError, OpError

_log = logging.getLogger(__name__)

LOST, SUSPENDED, CONNECTED = "LOST", "SUSPENDED", "CONNECTED"  # those of kazoo's KazooState

_HOLDS = ".hold"  # node of a job with the nodes of `hold`; no process has such a name
_JOIN_SECONDS = 10.0
_MIN_ASK_SECONDS = 5.0
_HOLD_PAUSE_SECONDS = 0.2
_MAX_ADDRESS_BYTES = 4096

Key = tuple[str, int]
"""Name and index of a process."""


@dataclass(frozen=True)
class SessionOptions:
    """Where a `ZooKeeperSession` writes, and how often.

    Args:
        path: Node of the job.
        servers: Servers of ZooKeeper.
        max_tries: Number of tries of `register` and `deregister`.
        delay: Seconds between two tries.
        session_seconds: Seconds without a sign of life after which ZooKeeper ends the session.
        start_seconds: Seconds to wait for ZooKeeper at the start.
        period_seconds: Returns the seconds between two writes of a registered address.
    """

    path: str
    servers: str
    max_tries: int
    delay: float
    session_seconds: float
    start_seconds: float
    period_seconds: Callable[[], float]


class ZKListener:
    """Lets all entries be written again after a session was lost.

    Args:
        renew: Function that is called when a new session begins after a lost one. It must not
            block: kazoo calls listeners on the thread of the connection.
    """

    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew, self._has_lost = renew, False

    def __call__(self, state: str) -> None:
        """Take a state of the connection."""
        if state == LOST:
            self._has_lost = True
        elif state == CONNECTED and self._has_lost:
            self._has_lost = False
            self._renew()


class _Entry:
    """An address that is registered, and the thread that writes the node again."""

    def __init__(self, address: str, write: Callable[[], None], period: Callable[[], float]):
        self.address = address
        self._write, self._period = write, period
        self._wake = threading.Event()
        self.is_over = False
        self._thread = threading.Thread(target=self._run, name="monolith-zk-entry", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def end(self) -> None:
        self.is_over = True
        self._wake.set()

    def join(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._period())
            self._wake.clear()
            if self.is_over:
                return
            try:
                self._write()
            except Exception as error:  # the next period tries again
                _log.debug("an address was not written again: %s", error)


class ZooKeeperSession:
    """Writes addresses of this process, and keeps those of all processes by watches.

    `ZKServiceDiscovery` owns a session; the threads and the client know the session only, so that
    a discovery that nobody uses any more is collected and closes its session.

    Args:
        options: Where to write, and how often.
        make_client: Returns a client of kazoo.

    Attributes:
        client: The client.
    """

    def __init__(self, options: SessionOptions, make_client: Callable[..., Any]) -> None:
        self._options = options
        self._lock = threading.Lock()  # of everything below but the client
        self._has_changed = threading.Condition(self._lock)
        self._cluster: dict[str, dict[int, str]] = {}
        self._watched: set[str] = set()
        self._created = 0  # transaction that made the job's node
        self._entries: dict[Key, _Entry] = {}
        self._held: set[Key] = set()
        self._lost: set[Key] = set()  # held by another process since a session was lost
        self._writing = threading.Lock()  # one write of nodes at a time
        self._is_closed = False
        self.client = make_client(hosts=options.servers, timeout=options.session_seconds)
        self._acl = _creator_acl() if getattr(self.client, "auth_data", None) else None
        self.client.add_listener(ZKListener(self.renew))
        self.client.start(timeout=options.start_seconds)
        try:
            self.client.DataWatch(options.path, self._see_job)
        except BaseException:
            self.close()
            raise

    # Addresses

    def addresses(self, name: str) -> dict[int, str]:
        """Return the addresses of a name by index."""
        with self._lock:
            return dict(sorted(self._cluster.get(name, {}).items()))

    def wait_change(self, name: str, known: Mapping[int, str], end: float) -> dict[int, str]:
        """Return the addresses of a name when they are not the known ones, or at the end."""
        with self._has_changed:
            while (left := end - time.monotonic()) > 0 and not self._is_closed:
                if self._cluster.get(name, {}) != known:
                    break
                self._has_changed.wait(left)
        return self.addresses(name)

    def _see_job(self, data: bytes | None, stat: Any, event: Any = None) -> None:
        """Watch the children of the job's node, which may be made again after it was removed."""
        created = 0 if stat is None else stat.czxid
        with self._lock:
            is_new, self._created = created != self._created, created
        if is_new and stat is not None:
            self.client.ChildrenWatch(self._options.path, self._see_children)

    def _see_children(self, children: list[str]) -> None:
        with self._lock:
            new = [child for child in children if child not in self._watched and _key_of(child)]
            self._watched |= {*new}
        for child in new:
            self._watch_entry(child)

    def _watch_entry(self, child: str) -> None:
        key = _key_of(child)
        assert key is not None

        def see(data: bytes | None, stat: Any, event: Any = None) -> bool:
            if stat is None:
                with self._lock:
                    self._watched.discard(child)
            self._put(key, None if stat is None else _address_of(child, data))
            return stat is not None  # False ends the watch

        self.client.DataWatch(f"{self._options.path}/{child}", see)

    def _put(self, key: Key, address: str | None) -> None:
        name, index = key
        with self._has_changed:
            known = self._cluster.setdefault(name, {})
            if address is None:
                known.pop(index, None)
            else:
                known[index] = address
            self._has_changed.notify_all()

    # Entries

    def register(self, name: str, index: int, address: str) -> None:
        """Write an address now, and again from time to time."""
        key = name, index
        self._retry("register", lambda: self._write(key, address))
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                entry.address = address
            else:
                self._entries[key] = _Entry(
                    address, lambda: self._write_again(key), self._options.period_seconds
                )
        self._put(key, address)  # the watch tells it later

    def deregister(self, name: str, index: int) -> None:
        """Remove an address."""
        key = name, index
        with self._lock:
            entry = self._entries.pop(key, None)
        if entry is not None:
            entry.end()
            entry.join()
        self._retry("deregister", lambda: self._remove(self._node(key)))
        self._put(key, None)

    def renew(self) -> None:
        """Let all entries be written again, each on its own thread, and other holds be taken."""
        with self._lock:
            entries = list(self._entries.values())
            keys = [key for key in self._held - self._lost if key not in self._entries]
        for entry in entries:
            entry.wake()
        if keys:
            work = threading.Thread(target=self._hold_again, args=(keys,), daemon=True)
            work.start()

    def _hold_again(self, keys: list[Key]) -> None:
        for key in keys:
            try:
                self._retry("hold", lambda key=key: self._check_held(key))  # type: ignore[misc]
            except OpError:  # it is in the log
                continue

    def _check_held(self, key: Key) -> bool:
        """Take a place again; whether no other process took it while the session was lost."""
        if self._take(key):
            return True
        with self._lock:
            self._lost.add(key)
        _log.error(
            "%s %d is no longer registered by this process: %s took its place while the session "
            "was lost; end one of the two",
            *key,
            self._holder(key),
        )
        return False

    def _retry(self, what: str, call: Callable[[], object]) -> None:
        for left in reversed(range(max(1, self._options.max_tries))):
            try:
                call()
                return
            except Exception as error:
                if left and not isinstance(error, FailedPreconditionError):
                    _log.warning("%s in ZooKeeper: trying again after %r", what, error)
                    time.sleep(self._options.delay)
                    continue
                _log.error("%s in ZooKeeper failed: %r", what, error)
                if isinstance(error, OpError):
                    raise
                raise DiscoveryError(
                    f"[ZKServiceDiscovery.{what}] expected ZooKeeper at {self._options.servers} to "
                    f"take a node of {self._options.path}, got {error!r} after "
                    f"{self._options.max_tries} tries"
                ) from error

    def _write_again(self, key: Key) -> None:
        with self._lock:
            entry, is_held, is_lost = self._entries.get(key), key in self._held, key in self._lost
        if entry is None or is_lost:
            return
        if is_held and not self._check_held(key):
            return
        self._write(key, entry.address)

    def _write(self, key: Key, address: str) -> None:
        self._check_connected()
        with self._writing:
            path, value = self._node(key), address.encode()
            stat = self._ask("exists", path)
            if stat is not None and not self._is_mine(stat):
                self._remove(path)  # the node of a session that ends takes the address with it
                stat = None
            if stat is None:
                self._make_job_node()
                self._ask("create", path, value, acl=self._acl, ephemeral=True)
            else:
                self._ask("set", path, value)

    def _make_job_node(self) -> None:
        root = self._options.path.rpartition("/")[0]
        self._ask("ensure_path", root)
        self._ask("ensure_path", self._options.path, acl=self._acl)

    def _remove(self, path: str) -> None:
        self._check_connected()
        if self._ask("exists", path) is not None:
            self._ask("delete", path)

    def _ask(self, call: str, *arguments: Any, **options: Any) -> Any:
        """Return the answer of ZooKeeper to a call of the client, which has a limit of time."""
        answer = getattr(self.client, f"{call}_async")(*arguments, **options)
        return answer.get(timeout=max(self._options.session_seconds, _MIN_ASK_SECONDS))

    def _is_mine(self, stat: Any) -> bool:
        session: tuple[int, bytes] | None = self.client.client_id
        return session is not None and stat.ephemeralOwner == session[0]

    def _node(self, key: Key) -> str:
        return f"{self._options.path}/{key[0]}.{key[1]}"

    def _check_connected(self) -> None:
        if not self.client.connected:  # kazoo would wait without a limit
            raise DiscoveryError(
                f"[ZKServiceDiscovery] expected ZooKeeper at {self._options.servers} to answer, "
                "got no connection"
            )

    # Holds

    def hold(self, name: str, index: int) -> None:
        """Take an index, or wait until the session that has it can have ended."""
        self._retry("hold", lambda: self._hold((name, index)))

    def _hold(self, key: Key) -> None:
        name, index = key
        seconds = 1.5 * self._options.session_seconds
        end, is_told = time.monotonic() + seconds, False
        while not self._take(key):
            holder = self._holder(key)
            if time.monotonic() >= end:
                raise FailedPreconditionError(
                    f"[ZKServiceDiscovery.hold] expected that no process is {name} {index}, got "
                    f"one that is alive: {holder} ({self._options.path}); end it first, or choose "
                    "another index or another name of the job"
                )
            if not is_told:
                is_told = True
                _log.warning(
                    "waiting up to %.0f s for the session of %s, which is %s %d, to end",
                    *(seconds, holder, name, index),
                )
            time.sleep(_HOLD_PAUSE_SECONDS)
        with self._lock:
            self._held.add(key)

    def _take(self, key: Key) -> bool:
        """Whether this process has the index now."""
        self._check_connected()
        path = self._hold_path(key)
        with self._writing:
            stat = self._ask("exists", path)
            if stat is not None:
                return self._is_mine(stat)
            self._make_job_node()
            self._ask("ensure_path", path.rpartition("/")[0], acl=self._acl)
            try:
                self._ask("create", path, holder_text().encode(), acl=self._acl, ephemeral=True)
            except Exception as error:
                if type(error).__name__ == "NodeExistsError":  # another process was faster
                    return False
                raise
        return True

    def _holder(self, key: Key) -> str:
        try:
            data, _ = self._ask("get", self._hold_path(key))
        except Exception:  # it has ended meanwhile
            return "a process that has just ended"
        return str(data, errors="backslashreplace")[:200] or "a process without a name"

    def _hold_path(self, key: Key) -> str:
        return f"{self._options.path}/{_HOLDS}/{key[0]}.{key[1]}"

    # End

    def close(self) -> None:
        """End threads and session. Closing twice is fine."""
        with self._has_changed:
            is_closed, self._is_closed = self._is_closed, True
            entries, self._entries = list(self._entries.values()), {}
            self._has_changed.notify_all()
        if is_closed:
            return
        for entry in entries:
            entry.end()
        try:
            self.client.stop()
            self.client.close()
        except Exception as error:
            _log.warning("the session in ZooKeeper was not closed in order: %r", error)
        for entry in entries:
            entry.join()


def _creator_acl() -> Any:
    """Return the rights of nodes that only the credentials of their maker may read and write."""
    from kazoo.security import CREATOR_ALL_ACL

    return CREATOR_ALL_ACL


def _key_of(child: str) -> Key | None:
    """Return name and index of a node; None for other nodes.

    Example:
        >>> _key_of("ps.3"), _key_of(".hold"), _key_of("ps.x")
        (('ps', 3), None, None)
    """
    name, _, number = child.rpartition(".")
    return (name, int(number)) if name and number.isascii() and number.isdecimal() else None


def _address_of(child: str, data: bytes | None) -> str | None:
    """Return the address that a node has; None for content that is none."""
    try:
        text = (data or b"")[: _MAX_ADDRESS_BYTES + 1].decode().strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > _MAX_ADDRESS_BYTES or not text.isprintable():
        _log.warning("node %s of ZooKeeper has no address but %r", child, (data or b"")[:40])
        return None
    return text
