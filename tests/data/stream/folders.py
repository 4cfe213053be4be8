"""Folders of JSON lines that grow, and what a stream reads from them."""

import json
import threading

from monolith.data import Columns, stream
from tests.data.samples import users

COLUMNS = Columns(["user"], time="time")


def add(folder, name, numbers, end="\n"):
    """Append a line for each number to a file; its user is the number."""
    lines = [json.dumps({"user": number, "time": 1_000 + number}) + end for number in numbers]
    append(folder / name, "".join(lines))


def append(path, text):
    with open(path, "ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def tailed(folder, size=4, seconds=0.05, columns=COLUMNS, **options):
    return stream.tail(folder, columns=columns, **options).batch(size, seconds=seconds)


def read(batches, count):
    """Return the next `count` users of an iteration, in order."""
    got = []
    while len(got) < count:
        got += users([next(batches)])
    return got


class Later:
    """Calls a function from another thread once the iteration waits; ends with the block."""

    def __init__(self, batches, call):
        self._asked, self._call, self._error = threading.Event(), call, None
        batches.on_wait = self._asked.set
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        if self._asked.wait(60):
            self._call()

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *error):
        self._thread.join(60)
