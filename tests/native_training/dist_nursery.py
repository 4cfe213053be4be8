"""Forks a process of `cpu_dist_program` for each line, which is its arguments as JSON.

The first argument is the file for its output; the process writes its exit status beside it, to
`<file>.status`. The children are killed when stdin ends.
"""

import contextlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import torch

from monolith.cluster.zmq.extra import load_zmq
from tests.native_training import cpu_dist_program


def work(output, *arguments):
    """Run the program in this child; return its exit status."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(file, number)
    try:
        cpu_dist_program.main(arguments)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run():
    load_zmq()
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a process imports for two seconds
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children
    children = []
    for line in sys.stdin:
        output, *arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            status = work(output, *arguments)
            sys.stdout.flush()
            Path(f"{output}.part").write_text(str(status))
            os.replace(f"{output}.part", f"{output}.status")
            os._exit(status)
        children.append(child)
        print(child, flush=True)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    run()
