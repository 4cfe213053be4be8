"""A TCP proxy that loses connections on command."""

import contextlib
import socket
import struct
import threading


class Proxy:
    """Forwards connections of a free loopback port to another port.

    Attributes:
        port: Port of the proxy.
        num_bytes: Bytes that clients have sent.
    """

    def __init__(self, target):
        self._target, self._state, self.num_bytes = target, threading.Condition(), 0
        self._mode, self._limit = "pass", None
        self._sockets = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def set(self, mode, after_bytes=0):
        """From now on, or after some more bytes of clients: `pass`, `drop` or `stall`.

        `drop` resets every connection, old and new; `stall` forwards nothing any more.
        """
        with self._state:
            if after_bytes:
                self._limit = self.num_bytes + after_bytes, mode
            else:
                self._change(mode)

    def close(self):
        """Reset every connection, and refuse new ones."""
        self._listener.close()
        with self._state:
            self._change("drop")

    def _change(self, mode):
        self._mode, self._limit = mode, None
        self._state.notify_all()
        if mode == "drop":
            for each in list(self._sockets):
                self._reset(each)

    def _reset(self, each):
        self._sockets.discard(each)
        with contextlib.suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.shutdown(socket.SHUT_RD)
        each.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._state:
                if self._mode == "drop":
                    self._reset(client)
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets |= {client, server}
            self._start(self._forward, client, server, True)
            self._start(self._forward, server, client, False)

    def _forward(self, source, target, is_client):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._state:
                    if is_client:
                        self.num_bytes += len(data)
                    if self._limit is not None and self.num_bytes >= self._limit[0]:
                        self._change(self._limit[1])
                    self._state.wait_for(lambda: self._mode != "stall")
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)  # the end of the data, after the data

    def _start(self, function, *arguments):
        threading.Thread(target=function, args=arguments, daemon=True).start()
