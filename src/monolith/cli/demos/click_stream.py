"""Produce the clicks of `monolith demo stream` at a rate, into a folder or a broker of its own.

As a program, `python -m monolith.cli.demos.click_stream FOLDER NUMBER RATE` is the producer, and
with `--broker` the broker too. It prints the URI of the stream, waits for a line on stdin, sends
the clicks, and prints `done`.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NUM_USERS, NUM_ITEMS = 500, 100
TOPIC, NUM_PARTITIONS = "clicks", 4  # as many as a broker of librdkafka gives a new topic
_EVENTS_PER_FILE = 20_000
_TICK_SECONDS = 0.02

DONE = "done"

Send = Callable[[list[bytes]], None]


def events(number: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield clicks; the first ones have every user and every item.

    Example:
        >>> [sorted(event) for event in events(1)]
        [['click', 'event', 'item', 'user']]
    """
    draw = random.Random(seed)
    users = [draw.gauss(0, 1.5) for _ in range(NUM_USERS)]
    items = [draw.gauss(0, 1.5) for _ in range(NUM_ITEMS)]
    for event in range(number):
        user = event if event < NUM_USERS else draw.randrange(NUM_USERS)
        item = event if event < NUM_ITEMS else draw.randrange(NUM_ITEMS)
        chance = 1 / (1 + math.exp(-(users[user] + items[item] - 1)))
        yield {"event": event, "user": user, "item": item, "click": int(draw.random() < chance)}


def produce(number: int, rate: float, send: Send) -> None:
    """Send events at a rate, each with the time at which it is sent."""
    start, num_sent, source = time.monotonic(), 0, events(number)
    while num_sent < number:
        due = min(number, int((time.monotonic() - start) * rate))
        now = int(time.time())
        lines = [json.dumps({**next(source), "time": now}).encode() for _ in range(due - num_sent)]
        if lines:
            send(lines)
        num_sent = due
        time.sleep(_TICK_SECONDS)


class FolderWriter:
    """Appends lines to files of a folder, and begins a new file after some lines.

    Args:
        folder: The folder, which is made if it is missing.

    Attributes:
        uri: URI of the stream.
    """

    def __init__(self, folder: Path) -> None:
        self.uri, self._folder, self._num_lines = f"tail:{folder}", folder, 0
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, lines: list[bytes]) -> None:
        """Append lines."""
        path = self._folder / f"part-{self._num_lines // _EVENTS_PER_FILE:05}.jsonl"
        with open(path, "ab") as file:
            file.write(b"\n".join([*lines, b""]))
        self._num_lines += len(lines)

    def flush(self) -> None:
        """Do nothing: the lines are there."""


class BrokerWriter:
    """A broker in this process, which keeps its messages in memory, and a producer to it.

    Attributes:
        uri: URI of the stream.
    """

    def __init__(self) -> None:
        import confluent_kafka

        self._producer: Any = confluent_kafka.Producer(
            {"test.mock.num.brokers": 1, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        )
        brokers = self._producer.list_topics(TOPIC, timeout=10).brokers  # makes the topic
        (broker,) = brokers.values()
        self.uri = f"kafka://{broker.host}:{broker.port}/{TOPIC}"
        self._num_sent = 0

    def __call__(self, lines: list[bytes]) -> None:
        """Send messages, a line each."""
        for line in lines:
            partition = self._num_sent % NUM_PARTITIONS
            self._producer.produce(TOPIC, line, partition=partition)
            self._num_sent += 1
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until the broker has all messages."""
        if left := self._producer.flush(30):
            raise TimeoutError(f"[demo] expected a broker that takes messages, got {left} left")


def main(arguments: list[str]) -> None:
    """Print the URI, wait for a line, produce, print `done`, and wait until stdin ends."""
    parser = argparse.ArgumentParser(prog="click_stream")
    parser.add_argument("folder", type=Path)
    parser.add_argument("number", type=int)
    parser.add_argument("rate", type=float)
    parser.add_argument("--broker", action="store_true")
    options = parser.parse_args(arguments)
    writer = BrokerWriter() if options.broker else FolderWriter(options.folder)
    print(writer.uri, flush=True)
    sys.stdin.readline()
    produce(options.number, options.rate, writer)
    writer.flush()
    print(DONE, flush=True)
    sys.stdin.read()  # a broker ends with this process


if __name__ == "__main__":
    main(sys.argv[1:])
