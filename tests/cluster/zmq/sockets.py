"""Servers on sockets of this machine, and a server that records its calls."""

import contextlib
import itertools
import threading

from monolith.cluster.call_host import Call
from monolith.cluster.connection import HostHandle
from monolith.cluster.zmq.client_loop import ClientLoop
from monolith.cluster.zmq.server_loop import ServerLoop
from monolith.cluster.zmq.zmq_connection import ServerAddress, ZmqConnection

ANY_PORT = "tcp://127.0.0.1:0"
_lives = itertools.count(1)


class EchoServer:
    """Answers with the call's arguments; "erase" waits for `gate`, "evict" raises its argument.

    Attributes:
        calls: What was done.
        released: Clients that were forgotten.
    """

    index, num_servers, label = 0, 1, "/job:ps/task:0/device:CPU:0"

    def __init__(self):
        self.life = next(_lives)
        self.calls, self.released = [], []
        self.gate, self.waiting = threading.Event(), threading.Semaphore(0)

    def do(self, host, call):
        self.calls.append((host, call))
        if call.verb == "erase":
            self.waiting.release()
            assert self.gate.wait(30)
        if call.verb == "evict":
            raise call.arguments[0]
        return call.arguments

    def is_called(self, index, num_servers):
        return (index, num_servers) == (self.index, self.num_servers)

    def is_quick(self, host, verb):
        return verb == "num_rows"

    def release_client(self, client):
        self.released.append(client)

    def tick(self):
        """Nothing waits."""

    def end_waits(self):
        """Nothing waits."""

    @property
    def sequences(self):
        return [call.sequence for _, call in self.calls]


@contextlib.contextmanager
def serving(server=None, address=ANY_PORT, **options):
    with ServerLoop(server or EchoServer(), address, **options) as loop:
        yield loop


@contextlib.contextmanager
def connected(address, *, keys=None, server=(0, 1), **options):
    """A connection; `address` may be what finds it."""
    find = address if callable(address) else lambda: address
    with ClientLoop() as loop:
        connection = ZmqConnection(loop, ServerAddress(*server, find, keys), **options)
        yield connection
        connection.close()


def call(sequence=0, verb="num_rows", arguments=(), client=5, done=0):
    return Call(client, sequence, done, verb, arguments)


def ask(connection, *args, host=0, **options):
    return connection.send(HostHandle(host), call(*args, **options)).result(20)


def until(is_so, seconds=20.0):
    """Wait for a fact of another thread; its last value."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if is_so():
            return True
        pause.wait(0.01)
    return False
