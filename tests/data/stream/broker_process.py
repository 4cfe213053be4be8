"""A broker of Kafka as a process of its own: librdkafka's mock, which keeps messages in memory.

`python -m tests.data.stream.broker_process` prints its address, and then an empty line for each of
the lines that it has done:

    create TOPIC PARTITIONS
    down, up            let its port refuse connections, or take them again

It ends with its standard input.
"""

import contextlib
import ctypes
import glob
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka

_ROOT = Path(__file__).parents[3]
_PRODUCER = 0
_TIMEOUT_SECONDS = 30.0
_LIFE_SECONDS = 900.0  # so that no read of its output waits for ever


def serve() -> None:
    """Run the broker of this process."""
    folder = os.path.dirname(os.path.dirname(confluent_kafka.__file__))
    (path,) = glob.glob(f"{folder}/confluent_kafka.libs/librdkafka-*")
    kafka = ctypes.CDLL(path)
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(kafka, name).restype = ctypes.c_void_p
    kafka.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    text = ctypes.create_string_buffer(512)
    configuration = ctypes.c_void_p(kafka.rd_kafka_conf_new())
    client = kafka.rd_kafka_new(_PRODUCER, configuration, text, len(text))
    cluster = ctypes.c_void_p(kafka.rd_kafka_mock_cluster_new(ctypes.c_void_p(client), 1))
    kafka.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 100)
    print(kafka.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        if command == "create":
            error = kafka.rd_kafka_mock_topic_create(cluster, words[0].encode(), int(words[1]), 1)
        elif command == "down":
            error = kafka.rd_kafka_mock_broker_set_down(cluster, 1)
        else:
            error = kafka.rd_kafka_mock_broker_set_up(cluster, 1)
        print(error or "", flush=True)


class Broker:
    """A running broker.

    Attributes:
        servers: Its address.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self._process = process
        self.servers = self._output.readline().strip()
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.servers, "log_level": 0}
        )
        self._num_topics = 0

    def tell(self, *words: object) -> None:
        self._input.write(" ".join(map(str, words)) + "\n")
        assert self._output.readline().strip() == ""

    def topic(self, num_partitions: int = 1) -> str:
        """Create a topic; return its name."""
        self._num_topics += 1
        name = f"topic-{self._num_topics}"
        self.tell("create", name, num_partitions)
        return name

    def send(
        self,
        topic: str,
        *values: Any,
        partition: int = 0,
        times: Sequence[int] | None = None,
    ) -> None:
        """Produce messages; times are in milliseconds."""
        for number, value in enumerate(values):
            options: dict[str, Any] = {} if times is None else {"timestamp": times[number]}
            self._producer.produce(topic, value, partition=partition, **options)
        assert self._producer.flush(_TIMEOUT_SECONDS) == 0

    def read(self, topic: str, count: int, partition: int = 0) -> list[Any]:
        """Return messages of a topic."""
        config = {"bootstrap.servers": self.servers, "group.id": "test", "fetch.wait.max.ms": 10}
        consumer = confluent_kafka.Consumer(config)
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        messages: list[Any] = []
        end = time.monotonic() + _TIMEOUT_SECONDS
        while len(messages) < count and time.monotonic() < end:
            messages += [m for m in consumer.consume(count, 0.1) if m.error() is None]
        consumer.close()
        return messages

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the process of the broker, as a machine that hangs, until the block ends."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Let the broker refuse connections until the block ends."""
        self.tell("down")
        try:
            yield
        finally:
            self.tell("up")


@contextlib.contextmanager
def running() -> Iterator[Broker]:
    """Start a broker; it ends with the block."""
    command = [sys.executable, "-m", "tests.data.stream.broker_process"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
        cwd=_ROOT,
    ) as process:
        limit = threading.Timer(_LIFE_SECONDS, process.kill)
        limit.daemon = True
        limit.start()
        yield Broker(process)
        limit.cancel()
        assert process.stdin is not None
        process.stdin.close()


if __name__ == "__main__":
    serve()
