"""`kafka`: the samples of topics of Kafka."""

import math
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from monolith.data.batch_maker import EVENT_TIME
from monolith.data.columns import Columns
from monolith.data.convert import BadSamples, Origin
from monolith.data.cursor import BlockLog, SourceWait, State, settled
from monolith.data.pipeline import Pipeline
from monolith.data.records.decoder import RecordFormat
from monolith.data.records.record_columns import RecordColumns
from monolith.data.sources import OnError
from monolith.data.stages import concat
from monolith.data.stream.kafka_consumer import (
    KafkaConsumer,
    KafkaOptions,
    Message,
    Segment,
    Start,
    place_of,
)
from monolith.data.stream.kafka_extra import load_kafka
from monolith.data.stream.message_formats import (
    NOT_READABLE,
    Types,
    check_format,
    name_of,
    reader_of,
)
from monolith.errors import DataLossError

_MOST, _MOST_BYTES = 8_192, 1 << 20  # messages of a block; a megabyte stays in the cache
_PAUSE_SECONDS = 0.1

LATE = "expected samples within the lateness of the stream"
"""Rule under which late samples are counted."""

TOO_LARGE = "expected messages within max_message_bytes"
"""Rule under which messages are counted that are too large."""

NO_VALUE = "expected messages with a value"
"""Rule under which messages are counted that have no value."""

BAD_MESSAGE = "expected messages of the format of the stream"
"""Rule under which messages are counted that cannot be read."""


def kafka(
    servers: str,
    topics: str | Sequence[str],
    message_format: str | RecordFormat = "json",
    *,
    columns: Columns,
    group: str | None = None,
    start: Start = "earliest",
    settings: Mapping[str, Any] | None = None,
    types: Types | None = None,
    event_time: Literal["message", "column"] = "message",
    lateness_seconds: float | None = None,
    late: Literal["drop", "keep"] = "drop",
    on_error: OnError = "raise",
    dead_letter_topic: str | None = None,
    max_message_bytes: int = 1 << 24,
    buffer_bytes: int = 1 << 26,
    buffer_messages: int = 100_000,
    refresh_seconds: float = 5.0,
    idle_seconds: float | None = None,
) -> Pipeline:
    """Read the samples of topics without end; needs the extra `kafka`.

    The offsets of the partitions are the state of the pipeline, and so a part of checkpoints;
    nothing is committed to the broker. A thread of its own takes messages, so that a slow step or
    save never misses a poll; its buffer is bounded. docs/streams.md tells what each fault does.

    Args:
        servers: addresses of brokers, `host:port`, with commas between them.
        topics: name of a topic, or several names.
        message_format: "json" for an object, lines of objects or an array of objects; "arrow" for a
            stream of Arrow IPC; "example", "example_batch", "instance" or "tf_example" for one bare
            record; or a `RecordFormat` for framed records, one after another.
        columns: columns to read.
        group: group of consumers among whose members the broker divides the partitions; None reads
            all partitions, those that are added later too.
        start: where a partition without a position in the state begins: "earliest", "latest",
            seconds since 1970, or offsets by partition such as `{"clicks/0": 17}` (others from
            their first message). Partitions that are added later begin at their first message.
        settings: settings of librdkafka, such as those of security; never logged or shown.
        types: types of columns of JSON, as in `data.jsonl`.
        event_time: whether the event time of a sample is the time of its message, or in the time
            column of `columns`.
        lateness_seconds: samples that are older than the newest sample so far by more than these
            seconds are late and counted; None means that no sample is late.
        late: whether late samples are dropped or kept.
        on_error: whether a message or sample that breaks a rule raises an error, or is skipped and
            counted.
        dead_letter_topic: topic for messages of which something was skipped; with "skip" only.
        max_message_bytes: size of the longest valid message.
        buffer_bytes: size of the messages in the buffer from which on the consumer pauses.
        buffer_messages: number of the messages in the buffer, likewise.
        refresh_seconds: time between two looks for partitions that were added.
        idle_seconds: time without a message after which the stream ends; None never ends it. The
            time begins when the broker has told which partitions there are.

    Raises:
        ValueError: an argument does not fit.
        FailedPreconditionError: confluent-kafka is not installed.
    """
    load_kafka()
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise ValueError("[data.stream.kafka] expected at least one topic, got none")
    for name, number in (
        ("max_message_bytes", max_message_bytes),
        ("buffer_bytes", buffer_bytes),
        ("buffer_messages", buffer_messages),
        ("refresh_seconds", refresh_seconds),
        ("idle_seconds", 1.0 if idle_seconds is None else idle_seconds),
    ):
        if not 0 < number < math.inf:
            raise ValueError(f"[data.stream.kafka] expected {name} above 0, got {number!r}")
    if isinstance(start, str) and start not in ("earliest", "latest"):
        raise ValueError(
            '[data.stream.kafka] expected start "earliest", "latest", seconds or offsets, got '
            f"{start!r}"
        )
    if event_time not in ("message", "column") or (event_time == "column" and columns.time is None):
        raise ValueError(
            '[data.stream.kafka] expected event_time "message", or "column" with a column of '
            f"times, got {event_time!r} (time column: {columns.time})"
        )
    if late not in ("drop", "keep") or on_error not in ("raise", "skip"):
        raise ValueError(
            '[data.stream.kafka] expected late "drop" or "keep" and on_error "raise" or "skip", '
            f"got {late!r} and {on_error!r}"
        )
    if dead_letter_topic is not None and on_error != "skip":
        raise ValueError(
            '[data.stream.kafka] expected on_error="skip" with a dead_letter_topic, got '
            f"{on_error!r}: nothing is skipped"
        )
    check_format(message_format, types or {})
    if message_format not in ("json", "arrow"):
        RecordColumns(columns)  # refuses columns that records cannot give
    options = KafkaOptions(
        servers, names, group, start, dict(settings or {}), buffer_bytes, buffer_messages,
        refresh_seconds,
    )  # fmt: skip
    rules = MessageRules(
        message_format, dict(types or {}), event_time == "column", lateness_seconds,
        late == "drop", dead_letter_topic, max_message_bytes, idle_seconds,
    )  # fmt: skip
    bad = BadSamples(on_error == "skip")
    return Pipeline(KafkaSource(options, rules, columns, bad), columns, bad)


@dataclass(frozen=True)
class MessageRules:
    """What is done with messages; see `kafka`."""

    format: str | RecordFormat
    types: Types
    has_column_times: bool
    lateness_seconds: float | None
    drops_late: bool
    dead_letter_topic: str | None
    max_bytes: int
    idle_seconds: float | None


@dataclass(frozen=True)
class KafkaSource:
    """Source stage of the samples of topics; see `kafka`.

    Args:
        options: how to read the topics.
        rules: what is done with messages.
        columns: columns to read.
        bad: handling of bad samples.
        wait: wait of the iteration.
    """

    options: KafkaOptions
    rules: MessageRules
    columns: Columns
    bad: BadSamples
    wait: SourceWait | None = field(default=None, repr=False, compare=False)
    is_stream: ClassVar[bool] = True

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [f"kafka: {', '.join(self.options.topics)}, {name_of(self.rules.format)}"]

    def open(self, epoch: int, state: State | None = None) -> "KafkaCursor":
        """See `Stage`."""
        return KafkaCursor(self, state)


class KafkaCursor:
    """One pass over topics.

    The state of the cursor:

        positions   partition -> offset of its next message
        newest      newest event time so far, in milliseconds; None before the first
        blocks      what came after the state: {"add": positions of partitions that are new}, or
                    {"read": [[partition, first offset, offset after the last]]}

    Args:
        source: stage of the topics.
        state: state of a cursor.
    """

    def __init__(self, source: KafkaSource, state: State | None) -> None:
        self._source, self._wait = source, source.wait or SourceWait()
        self._log = BlockLog()
        self._positions: dict[str, int] = {}
        self._newest: int | None = None
        self._replayed: deque[Any] = deque()
        self._reader = reader_of(source.rules.format, source.columns, source.rules.types)
        self._letters: Any = None  # producer of dead letters
        self._num_messages, self._heard = 0, time.monotonic()
        starts: dict[str, int] = {}
        if state is not None:
            self._positions, self._newest = dict(state["positions"]), state["newest"]
            self._replayed = deque(settled(state["blocks"]))
            starts.update(self._positions)
            for entry in self._replayed:
                starts = {**entry.get("add", {}), **starts}
        self._consumer = KafkaConsumer(
            source.options, starts, is_resumed=bool(starts), wake=self._wait.wake
        )
        consumer, positions = self._consumer, self._positions
        self._wait.lag = lambda: consumer.lag(dict(positions))
        weakref.finalize(self, self._consumer.close)  # of an iteration that was left by `break`

    def next(self) -> pa.RecordBatch | None:
        """See `Cursor`; the end is that of `idle_seconds`."""
        while True:
            messages = self._replay() if self._replayed else self._take()
            if messages is not None:
                self._heard = time.monotonic()
            elif self._is_over():
                return None
            if messages:
                block = self._block(messages)
                self._note(messages)
                if block is not None and block.num_rows:
                    return block
            elif messages is None:
                self._wait.pause(_PAUSE_SECONDS)

    def _is_over(self) -> bool:
        if not self._consumer.has_begun:
            self._heard = time.monotonic()
        idle = self._source.rules.idle_seconds
        return idle is not None and time.monotonic() - self._heard > idle

    def _replay(self) -> list[Message] | None:
        """Return the messages of the next block once more; None while they are not there."""
        entry = self._replayed[0]
        if "add" in entry:
            self._add(entry["add"])
            self._replayed.popleft()
            return []
        messages = self._consumer.take_exactly([Segment(*each) for each in entry["read"]])
        if messages is not None:
            self._replayed.popleft()
        return messages

    def _take(self) -> list[Message] | None:
        added, messages = self._consumer.take(_MOST, _MOST_BYTES)
        if added:
            self._add(added)
        return messages or ([] if added else None)

    def _add(self, added: Mapping[str, int]) -> None:
        self._log.note({"add": dict(added)})
        self._positions.update(added)

    def _note(self, messages: Sequence[Message]) -> None:
        """Note the messages as read."""
        segments: dict[str, list[int]] = {}
        for message in messages:
            segment = segments.setdefault(message.partition, [message.offset, 0])
            segment[1] = message.offset + 1
        self._log.note({"read": [[name, *segment] for name, segment in segments.items()]})
        self._positions.update({name: end for name, (_, end) in segments.items()})
        self._num_messages += len(messages)

    def _block(self, messages: Sequence[Message]) -> pa.RecordBatch | None:
        """Return the samples of messages, with their event times, without late ones."""
        rules, good = self._source.rules, []
        for message in messages:
            if message.value is None or len(message.value) > rules.max_bytes:
                rule = NO_VALUE if message.value is None else TOO_LARGE
                size = len(message.value or b"")
                self._refuse(message, rule, f"got {size} bytes")
            else:
                good.append(message)
        if not good:
            return None
        try:
            values = [message.value or b"" for message in good]
            block, counts = self._reader.read(values, Origin(good[0].partition, 0))
            block = self._timed(block, np.repeat([message.time for message in good], counts))
        except NOT_READABLE:
            blocks = [part for message in good for part in self._read_one(message)]
            if not blocks:
                return None
            block = concat(blocks)
        return self._without_late(block)

    def _read_one(self, message: Message) -> list[pa.RecordBatch]:
        """Return the samples of a message, of which something may be bad."""
        origin, bad = Origin(f"{message.partition}, message {message.offset}", 0), self._source.bad
        before = sum(bad.counts.values())
        try:
            blocks = self._reader.read_one(message.value or b"", origin, bad)
        except NOT_READABLE as error:
            self._refuse(message, BAD_MESSAGE, f"got {error}", error)
            return []
        if sum(bad.counts.values()) > before:
            self._send_dead_letter(message, BAD_MESSAGE)
        return [
            self._timed(block, np.full(block.num_rows, message.time))
            for block in blocks
            if block.num_rows
        ]

    def _refuse(
        self, message: Message, rule: str, got: str, error: Exception | None = None
    ) -> None:
        """Count a message as bad.

        Raises:
            DataLossError: bad messages are not skipped.
        """
        bad = self._source.bad
        if not bad.skips:
            raise DataLossError(
                f"[data.stream.kafka] partition {message.partition!r}, message {message.offset}: "
                f'{rule}, {got}; skip such messages with on_error="skip"'
            ) from error
        bad.counts[rule] = bad.counts.get(rule, 0) + 1
        self._send_dead_letter(message, rule)

    def _send_dead_letter(self, message: Message, rule: str) -> None:
        topic = self._source.rules.dead_letter_topic
        if topic is None:
            return
        if self._letters is None:
            options = self._source.options
            settings = {"bootstrap.servers": options.servers, **options.settings}
            self._letters = load_kafka().Producer(settings)
        from_topic, number = place_of(message.partition)
        headers = [("topic", from_topic), ("partition", str(number)),
                   ("offset", str(message.offset)), ("reason", rule)]  # fmt: skip
        self._letters.produce(topic, message.value, headers=headers)
        self._letters.poll(0)

    def _timed(self, block: pa.RecordBatch, times: "np.ndarray[Any, Any]") -> pa.RecordBatch:
        """Return samples with the times of their messages, unless a column has event times."""
        if self._source.rules.has_column_times:
            return block
        return block.append_column(EVENT_TIME, pa.array(times.astype(np.int64), mask=times < 0))

    def _without_late(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Note the newest event time; count late samples, and drop them if the rules say so."""
        rules = self._source.rules
        if rules.lateness_seconds is None:
            return block
        if rules.has_column_times:
            times = block.column(self._source.columns.time).to_numpy() * 1_000
        else:
            times = block.column(EVENT_TIME).fill_null(-1).to_numpy()
        first = -1 if self._newest is None else self._newest
        newest = np.maximum.accumulate(np.concatenate([[first], times]))
        self._newest = int(newest[-1])
        is_late = (times >= 0) & (times < newest[:-1] - rules.lateness_seconds * 1e3)
        if not is_late.any():
            return block
        counts = self._source.bad.counts
        counts[LATE] = counts.get(LATE, 0) + int(is_late.sum())
        return block.filter(pa.array(~is_late)) if rules.drops_late else block

    def state(self) -> State:
        """See `Cursor`."""
        return {
            "positions": dict(self._positions),
            "newest": self._newest,
            "blocks": self._log.later(),
        }

    def progress(self) -> tuple[int, int]:
        """Return the number of messages that were read; the total is unknown."""
        return self._num_messages, 0

    def close(self) -> None:
        """See `Cursor`; sends the dead letters that wait."""
        self._consumer.close()
        if self._letters is not None:
            self._letters.flush(5.0)
            self._letters = None
