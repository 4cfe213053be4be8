"""Forks a process for each line, which holds and registers an address until it is killed.

A line is a JSON list: an expression that opens a discovery, and calls of its methods.
"""

import contextlib
import json
import os
import signal

from monolith.cluster import discovery
from tests.forker import fork_for_lines, started


def register(line):
    source, calls = json.loads(line)
    opened = eval(source, vars(discovery))
    try:
        for name, *arguments in calls:
            getattr(opened, name)(*arguments)
        os.write(1, b"ready\n")
    except Exception as error:
        os.write(1, f"{type(error).__name__}: {error}\n".encode())
    signal.pause()


class Registrar:
    """Starts processes that register; kills them."""

    def __init__(self, program):
        self._program = program

    @contextlib.contextmanager
    def process(self, source, *calls):
        """A process that has made the calls; it is killed at the end of the block."""
        self._program.stdin.write(json.dumps([source, calls]) + "\n")
        said = [self._program.stdout.readline().strip() for _ in range(2)]  # in any order
        (number,) = [line for line in said if line.startswith("child ")]
        (answer,) = [line for line in said if not line.startswith("child ")]
        child = int(number.split()[1])
        try:
            assert answer == "ready", answer
            yield child
        finally:
            os.kill(child, signal.SIGKILL)
            assert self._program.stdout.readline() == "ended\n"


@contextlib.contextmanager
def registrars():
    with started("tests.cluster.discovery.registrar") as program:
        yield Registrar(program)


if __name__ == "__main__":
    fork_for_lines(register)
