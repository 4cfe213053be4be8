"""A way to a server on which connections break."""

import contextlib
import selectors
import socket
import threading


class CuttingProxy:
    """Hands bytes of any number of connections on, and cuts them when it is told to.

    Args:
        address: tcp address of the server.

    Attributes:
        address: where to connect.
        num_cuts: connections that were cut.
    """

    def __init__(self, address):
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        self._server, self._peers = (host, int(port)), {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.num_cuts = 0
        self._is_cut_due, self._is_closed = threading.Event(), False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self):
        """Cut all connections at the next answer of the server, before the answer arrives."""
        self._is_cut_due.set()

    def _run(self):
        while not self._is_closed:
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._peers:
                    self._hand_on(key.fileobj, is_answer=key.data)

    def _accept(self):
        client, _ = self._listener.accept()
        server = socket.create_connection(self._server)
        for one, other, is_answer in ((client, server, False), (server, client, True)):
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ, is_answer)

    def _hand_on(self, source, *, is_answer):
        try:
            data = source.recv(1 << 16)
            if data and not (is_answer and self._is_cut_due.is_set()):
                self._peers[source].sendall(data)
                return
        except OSError:
            pass
        if is_answer and self._is_cut_due.is_set():
            self._is_cut_due.clear()
            self.num_cuts += 1
        self._drop(source)

    def _drop(self, source):
        for each in (source, self._peers[source]):
            self._peers.pop(each)
            self._selector.unregister(each)
            each.close()

    def close(self):
        self._is_closed = True
        self._thread.join()
        with contextlib.suppress(KeyError):
            while self._peers:
                self._drop(next(iter(self._peers)))
        self._listener.close()
        self._selector.close()
