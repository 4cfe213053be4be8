"""Sends a message of many frames without a library, as a peer that wants a server's memory."""

import contextlib
import socket
import struct

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_FACT = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
READY = b"\x04" + bytes([6 + len(_FACT)]) + b"\x05READY" + _FACT
MORE, LAST = 3, 2
"""Flags of a large frame."""


def flood(address, num_frames, frame_bytes):
    """Send a message to a server that may end the connection; return the number of bytes sent."""
    host, port = address.removeprefix("tcp://").split(":")
    num_sent = 0
    with (
        socket.create_connection((host, int(port)), timeout=30) as stream,
        contextlib.suppress(OSError),
    ):
        stream.sendall(GREETING + READY)
        for number in range(num_frames):
            flag = LAST if number == num_frames - 1 else MORE
            stream.sendall(struct.pack(">BQ", flag, frame_bytes) + bytes(frame_bytes))
            num_sent += frame_bytes
        stream.shutdown(socket.SHUT_WR)
        while stream.recv(4096):  # until the server has read all and ends the connection
            pass
    return num_sent
