"""Forks a `monolith ps` for each line, and says what the command said when it was ready.

A line is the options of `Nursery.start` as JSON, or those of another command with its words. A
fork takes milliseconds, where an interpreter that imports torch takes seconds. The children are
killed when stdin ends.
"""

import contextlib
import functools
import json
import os
import signal
import sys

import torch

import monolith.cli.data_service
import monolith.cli.ps
import monolith.cli.tasks.task_file
import monolith.cluster.data_service
import monolith.cluster.zmq.server_process
import monolith.table
import monolith.train.roles.served_data
import monolith.train.roles.server
from monolith.cli.main import main
from monolith.cluster.zmq.extra import load_zmq
from monolith.cluster.zmq.sessions import Limits
from tests.cluster.server_records import record_tables


def serve(arguments, out, command=("ps",), records=None, limits=None):
    """Run the command in this child."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()  # Ctrl-C of a terminal is for the tests
    os.dup2(out, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["monolith", *command, "--json", *arguments]
    if records is not None:
        record_tables(records)
    if limits is not None:
        process = monolith.cluster.zmq.server_process
        process.ServerLoop = functools.partial(process.ServerLoop, limits=Limits(**limits))
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)
    finally:
        os._exit(0)


def run():
    load_zmq()
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a process imports for two seconds
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children
    children, pipes = [], []
    for line in sys.stdin:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            serve(**json.loads(line), out=write)
        os.close(write)
        children.append(child)
        pipes.append(stream := os.fdopen(read))
        said = stream.readline()
        sys.stdout.write(json.dumps({"pid": child, "said": json.loads(said or "null")}) + "\n")
        sys.stdout.flush()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    run()
