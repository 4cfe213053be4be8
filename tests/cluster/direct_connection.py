"""A connection to a server of this process: calls wait for a lost server, as over a wire."""

import copy
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from monolith.cluster import RemoteServers
from monolith.cluster.connection import Connection, Session
from monolith.cluster.server_host import ServerHost
from monolith.errors import AbortedError, UnavailableError


class _NewLife(Session):
    def __init__(self, host):
        self._host, self.label = host, host.label

    def send(self, handle, call):
        return _answer(self._host, handle, call)


def _answer(host, handle, call):
    """An answer of the host; what crosses is copied, as it would be by a wire."""
    answer = Future()
    try:
        answer.set_result(copy.deepcopy(host.do(handle.number, copy.deepcopy(call))))
    except Exception as error:
        answer.set_exception(error)
    return answer


class DirectConnection(Connection):
    """Sends to `host`, which `restart` replaces by an empty server of another life.

    Args:
        host: The server.
        calls: Takes (server, verb, arguments) of each call.
    """

    def __init__(self, host, calls=None):
        self.host, self.label = host, host.label
        self.calls = [] if calls is None else calls
        self._life, self._lock, self._is_closed = host.life, threading.Lock(), False
        self._restart_at = None

    def send(self, handle, call):
        if self._is_closed:
            raise UnavailableError(f"closed ({self.label})")
        with self._lock:
            try:
                if self._restart_at == call.verb:  # its answer is lost, and its effect
                    _answer(self.host, handle, call)
                    self._restart_at = None
                    self.restart()
                if self._life != self.host.life:
                    self._begin_life()
            except Exception as error:
                return _failed(error)
        self.calls.append((self.host.index, call.verb, call.arguments))
        return _answer(self.host, handle, call)

    def _begin_life(self):
        """As on a thread of a connection: in another one than the caller's."""
        if self.on_new_life is None:
            raise AbortedError(f"a new life of {self.label}")
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self.on_new_life, _NewLife(self.host)).result()
        self._life = self.host.life

    def restart(self):
        """Kills the server; an empty one takes its place."""
        self.host.close()
        self.host = ServerHost(self.host.index, self.host.num_servers, label=self.label)

    def restart_in(self, verb):
        """Kills the server while it does the next call of the verb, before the answer is sent."""
        self._restart_at = verb

    def close(self):
        self._is_closed = True


def _failed(error):
    answer = Future()
    answer.set_exception(error)
    return answer


def connections(num_servers, calls=None):
    return [DirectConnection(ServerHost(i, num_servers), calls) for i in range(num_servers)]


def remote_servers(num_servers, calls=None, **options):
    return RemoteServers(connections(num_servers, calls), **options)
