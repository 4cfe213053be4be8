"""Programs that fork a child for each line they read, so that a test can kill the child.

A fork takes milliseconds, where an interpreter that imports torch takes seconds.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent


def fork_for_lines(work):
    """Read lines; for each call `work(line)` in a child, say its process id, and when it ended."""
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a process imports for two seconds
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            work(line.strip())
            os._exit(0)
        os.write(1, f"child {child}\n".encode())
        os.waitpid(child, 0)
        os.write(1, b"ended\n")


@contextlib.contextmanager
def limited(kill, seconds=300):
    """Call `kill` if the block takes longer, so that no read of a pipe waits for ever."""
    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def started(module, environment=None, seconds=900):
    """A program that calls `fork_for_lines`, with pipes to it; it is killed after the seconds."""
    with subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        cwd=ROOT,
        env=environment,
        start_new_session=True,  # a group with its children
    ) as process:
        with limited(lambda: os.killpg(process.pid, signal.SIGKILL), seconds):
            yield process
        process.stdin.close()
