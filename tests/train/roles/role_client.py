"""A process in the place of `monolith`: lets a nursery fork the command, and lives as long.

`role_client.py SOCKET FOLDER ARGUMENT...`, also imported by tests. It loads nothing but what the
interpreter brings, and ends as the command ends, by the same signal or with the same status.
"""

import json
import os
import signal
import socket
import sys


def connect_role(path, folder, arguments, outputs, **more):
    """Start a command; return the lines of the nursery's connection, of which one is read."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    message = {"folder": folder, "arguments": arguments, **more}
    socket.send_fds(connection, [json.dumps(message).encode()], list(outputs))
    lines = connection.makefile()
    return connection, lines, json.loads(lines.readline())["pid"]


def main():
    _, lines, child = connect_role(sys.argv[1], sys.argv[2], sys.argv[3:], (1, 2))
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
    status = json.loads(lines.readline())["status"]
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
