"""Forks a `monolith` command for each connection, with the output of the process that connects.

A connection brings one message, the fields of `RoleCommand` as JSON, with two files for stdout and
stderr. The answer is a line with the process id of the child, and at its end a line with its
status. A connection that ends kills its child, and so does the end of stdin. A fork takes
milliseconds, where an interpreter that imports torch takes seconds.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import traceback
from selectors import EVENT_READ, DefaultSelector

import pyarrow.parquet  # noqa: F401
import torch

import monolith.cli.launch
import monolith.cli.ps
import monolith.cli.worker
import monolith.cluster.zmq.server_process
from monolith.cli.main import main
from monolith.cluster.zmq.extra import load_zmq
from tests.train.roles.role_records import record_role

MESSAGE_BYTES = 1 << 20


def run_role(message, files):
    """Run the command in this child."""
    code = 1
    try:
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == 2 else signal.SIG_DFL)
        os.setsid()
        for target, file in zip((1, 2), files, strict=True):
            os.dup2(file, target)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["monolith", *message["arguments"]]
        os.environ.update(message.get("environment", {}))
        os.chdir(message["folder"])
        if message.get("program"):
            monolith.cli.launch.PROGRAM = tuple(message["program"])
        record_role(message["folder"], message["arguments"])
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class RoleNursery:
    """Listens at a Unix socket, and has the children of its connections."""

    def __init__(self, path):
        self._selector, self._children = DefaultSelector(), {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for file in (self._listener, self._wake, 0):
            self._selector.register(file, EVENT_READ)

    def run(self):
        print("ready", flush=True)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._start(self._listener.accept()[0])
                elif key.fileobj == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                elif key.fileobj == 0:
                    for child in self._children.values():
                        os.kill(child, signal.SIGKILL)
                    return
                elif key.fileobj in self._children:  # its end
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self._children[key.fileobj], signal.SIGKILL)
                    self._selector.unregister(key.fileobj)
            self._collect()

    def _start(self, connection):
        message, files, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 2)
        child = os.fork()
        if child == 0:
            run_role(json.loads(message), files)
        for file in files:
            os.close(file)
        self._children[connection] = child
        self._selector.register(connection, EVENT_READ)
        self._say(connection, pid=child)

    def _collect(self):
        for connection, child in list(self._children.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                del self._children[connection]
                with contextlib.suppress(KeyError):
                    self._selector.unregister(connection)
                self._say(connection, status=os.waitstatus_to_exitcode(status))
                connection.close()

    def _say(self, connection, **facts):
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps(facts).encode() + b"\n")


if __name__ == "__main__":
    load_zmq()
    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # imports for two seconds
    RoleNursery(sys.argv[1]).run()
