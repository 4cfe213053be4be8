"""`KafkaConsumer`: takes messages of topics on a thread of its own, into a bounded buffer."""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from monolith.data.stream.kafka_extra import load_kafka
from monolith.errors import DataLossError, NotFoundError, OpError, UnavailableError

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.01  # the most that a message waits for others before it is handed over
_POLL_MESSAGES = 1_000
_REQUEST_SECONDS = 5.0  # for metadata and offsets
_RETRY_SECONDS = 0.5
_STATISTICS_MILLISECONDS = 1_000
_CLOSE_SECONDS = 10.0
_FULL_SECONDS = 1.0  # a full buffer for so long pauses the partitions of a member of a group

Start = str | float | Mapping[str, int]


class Message(NamedTuple):
    """A message: its place, its bytes (None for a deletion) and its time in ms (-1 without)."""

    partition: str
    offset: int
    value: bytes | None
    time: int


class Segment(NamedTuple):
    """Messages of a partition, from an offset up to, without, another."""

    partition: str
    begin: int
    end: int


@dataclass(frozen=True)
class KafkaOptions:
    """How to read topics; see `kafka`."""

    servers: str
    topics: tuple[str, ...]
    group: str | None = None
    start: Start = "earliest"
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    buffer_bytes: int = 1 << 26
    buffer_messages: int = 100_000
    refresh_seconds: float = 5.0

    def config(self) -> dict[str, Any]:
        """Return the settings of the client, with those of the caller, which may be secret."""
        is_new = self.settings.get("group.protocol") == "consumer"  # the broker divides by itself
        strategy = {} if is_new else {"partition.assignment.strategy": "cooperative-sticky"}
        return {
            "bootstrap.servers": self.servers,
            "fetch.wait.max.ms": 10,  # a broker may answer only at the end of this time
            "fetch.error.backoff.ms": 100,
            "reconnect.backoff.max.ms": 1_000,
            "queued.max.messages.kbytes": max(1_024, self.buffer_bytes >> 10),
            "topic.metadata.refresh.interval.ms": int(self.refresh_seconds * 1e3),
            **self.settings,
            "group.id": self.group or "monolith",
            "enable.auto.commit": False,  # positions belong to checkpoints
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # messages that are gone are not passed over in silence
            **strategy,
        }


def place_of(partition: str) -> tuple[str, int]:
    """Return topic and number of a partition.

    Example:
        >>> place_of("clicks/3")
        ('clicks', 3)
    """
    topic, _, number = partition.rpartition("/")
    return topic, int(number)


def partition_name(topic: str, number: int) -> str:
    """Return the name of a partition, which is a key of positions."""
    return f"{topic}/{number}"


class KafkaConsumer:
    """Takes messages on a thread, so that slow steps never miss a poll. Thread-safe.

    With a group, the broker assigns partitions and may take them away; messages of a partition that
    is taken away are dropped from the buffer. Without a group, all partitions of the topics are
    read, those that are added later too.

    Args:
        options: how to read topics.
        positions: offsets of the next messages, by partition; partitions without one begin at the
            start of the options.
        is_resumed: whether the positions are those of a checkpoint; then partitions without one are
            new, and begin at their first message.
        wake: function that is called when there are messages, or an error.

    Attributes:
        has_begun: whether partitions were assigned.
    """

    def __init__(
        self,
        options: KafkaOptions,
        positions: Mapping[str, int],
        *,
        is_resumed: bool,
        wake: Callable[[], None],
    ) -> None:
        self._kafka = load_kafka()
        self._options, self._wake, self._is_resumed = options, wake, is_resumed
        self._starts = dict(positions)
        self._lock = threading.Lock()
        self._buffers: dict[str, deque[Message]] = {}
        self._added: dict[str, int] = {}  # partitions that the reader does not know yet
        self._assigned: set[str] = set()
        self._num_bytes = self._num_messages = 0
        self._room = threading.Event()
        self._full_since: float | None = None
        self._error: BaseException | None = None
        self._is_closed = self._is_paused = False
        self._next_refresh, self.has_begun = 0.0, False
        self._ends: dict[str, int] = {}  # partition -> offset after its last message
        statistics = {
            "statistics.interval.ms": _STATISTICS_MILLISECONDS,
            "stats_cb": self._note_ends,
        }
        self._consumer = self._kafka.Consumer({**options.config(), **statistics}, logger=_log)
        self._thread = threading.Thread(target=self._run, name="monolith-kafka", daemon=True)
        self._thread.start()

    # The reader

    def take(self, most: int, most_bytes: int) -> tuple[dict[str, int], list[Message]]:
        """Return partitions that are new, with their offsets, and the messages that are there.

        Args:
            most: greatest number of messages, partition after partition in turns.
            most_bytes: size of the messages from which on no other one is taken.

        Raises:
            OpError: the thread has failed, and all messages before the failure are taken.
        """
        with self._lock:
            added, self._added = self._added, {}
            messages: list[Message] = []
            num_bytes = 0
            for partition in list(self._buffers):
                buffer = self._buffers.pop(partition)
                while buffer and len(messages) < most and num_bytes < most_bytes:
                    messages.append(buffer.popleft())
                    num_bytes += len(messages[-1].value or b"")
                self._buffers[partition] = buffer  # after the others, for the next call
            self._release(messages)
            if not messages and not added and self._error is not None:
                raise self._error
        return added, messages

    def take_exactly(self, segments: Sequence[Segment]) -> list[Message] | None:
        """Return the messages of segments; None while some of them are not there.

        Raises:
            DataLossError: a message of them is gone.
            OpError: the thread has failed.
        """
        with self._lock:
            self._added = {}
            for partition, begin, end in segments:
                buffer = self._buffers.get(partition)
                if buffer and buffer[0].offset > begin:
                    raise DataLossError(
                        f"[data.stream.kafka] expected message {begin} of partition {partition!r}, "
                        f"which was read and not trained when the state was taken, got "
                        f"{buffer[0].offset}; {_GONE}"
                    )
                if not buffer or buffer[-1].offset < end - 1:
                    if self._error is not None:
                        raise self._error
                    return None
            messages: list[Message] = []
            for partition, _, end in segments:
                buffer = self._buffers[partition]
                while buffer and buffer[0].offset < end:
                    messages.append(buffer.popleft())
            self._release(messages)
        return messages

    def _release(self, messages: Sequence[Message]) -> None:
        self._num_messages -= len(messages)
        self._num_bytes -= sum(len(message.value or b"") for message in messages)
        self._room.set()

    def lag(self, positions: Mapping[str, int]) -> int | None:
        """Return the number of messages after positions, as of at most a second ago.

        None means that the broker has not said so yet.
        """
        ends = self._ends  # replaced as a whole
        if not positions or not all(partition in ends for partition in positions):
            return None
        return sum(max(0, ends[name] - position) for name, position in positions.items())

    def close(self) -> None:
        """End the thread and leave the group; waits at most 10 seconds for a silent broker."""
        self._is_closed = True
        self._room.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    # The thread

    def _run(self) -> None:
        try:
            if self._options.group is not None:
                self._consumer.subscribe(
                    list(self._options.topics),
                    on_assign=self._on_assign,
                    on_revoke=self._on_revoke,
                    on_lost=self._on_revoke,
                )
            while not self._is_closed:
                self._refresh()
                if self._hold_back():
                    continue
                most = min(_POLL_MESSAGES, self._options.buffer_messages)
                messages = self._consumer.consume(most, _POLL_SECONDS)
                self._put(messages)
        except BaseException as error:
            with self._lock:
                self._error = error
            self._wake()
        finally:
            self._consumer.close()

    def _put(self, messages: Sequence[Any]) -> None:
        """Buffer messages of partitions that are assigned."""
        taken = []
        for message in messages:
            if message.error() is not None:
                self._check(message)
                continue
            partition = partition_name(message.topic(), message.partition())
            kind, milliseconds = message.timestamp()
            has_time = kind != self._kafka.TIMESTAMP_NOT_AVAILABLE
            time_of = milliseconds if has_time else -1
            taken.append(Message(partition, message.offset(), message.value(), time_of))
        if not taken:
            return
        with self._lock:
            for message in taken:
                if message.partition in self._assigned:
                    self._buffers.setdefault(message.partition, deque()).append(message)
                    self._num_messages += 1
                    self._num_bytes += len(message.value or b"")
        self._wake()

    def _note_ends(self, text: str) -> None:
        """Note the ends of partitions, which the statistics of the client have; on the thread."""
        ends = dict(self._ends)
        for topic, facts in json.loads(text)["topics"].items():
            for number, partition in facts["partitions"].items():
                if partition["hi_offset"] >= 0:
                    ends[f"{topic}/{number}"] = partition["hi_offset"]
        self._ends = ends

    def _check(self, message: Any) -> None:
        """Raise the error of a message, unless the client goes on by itself."""
        error, codes = message.error(), self._kafka.KafkaError
        place = f"topic {message.topic()!r}"
        if message.partition() is not None and message.partition() >= 0:
            place = f"partition {partition_name(message.topic(), message.partition())!r}"
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            raise DataLossError(
                f"[data.stream.kafka] expected {place} from its position on, got {error.str()}; "
                f"{_GONE}"
            )
        if error.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC):
            raise _no_topic(message.topic() or ", ".join(self._options.topics))
        if error.fatal() or error.code() in (
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.GROUP_AUTHORIZATION_FAILED,
            codes._AUTHENTICATION,
        ):
            raise UnavailableError(f"[data.stream.kafka] {place}: {error.str()}")
        _log.warning("[data.stream.kafka] %s: %s; the client goes on", place, error.str())

    def _hold_back(self) -> bool:
        """Whether the buffer is full, so that no message is taken; waits until there is room.

        A member of a group still has to call the client again and again, or the broker takes its
        partitions away. So its partitions are paused when the buffer stays full; to resume them
        takes the client about a second.
        """
        fill, now = self._fill(), time.monotonic()
        self._full_since = (self._full_since or now) if fill >= 1.0 else None
        is_long = self._full_since is not None and now - self._full_since > _FULL_SECONDS
        if is_long and self._options.group is not None and not self._is_paused:
            self._consumer.pause(self._consumer.assignment())
            self._is_paused = True
        elif self._is_paused and fill <= 0.5:
            self._consumer.resume(self._consumer.assignment())
            self._is_paused = False
        if fill < 1.0 or self._is_paused:
            return False
        self._room.wait(_POLL_SECONDS)
        self._room.clear()
        return True

    def _fill(self) -> float:
        """Return how full the buffer is; 1 is the limit."""
        options = self._options
        with self._lock:
            return max(
                self._num_bytes / options.buffer_bytes, self._num_messages / options.buffer_messages
            )

    def _refresh(self) -> None:
        """Without a group, assign the partitions that are new.

        Raises:
            NotFoundError: a topic is gone, or is not there at the begin.
        """
        now = time.monotonic()
        if self._options.group is not None or now < self._next_refresh:
            return
        self._next_refresh = now + self._options.refresh_seconds
        try:
            found = [name for topic in self._options.topics for name in self._partitions(topic)]
            new = [partition for partition in found if partition not in self._assigned]
            starts = self._offsets(new)
        except self._kafka.KafkaException as error:
            self._next_refresh = now + _RETRY_SECONDS
            _log.warning("[data.stream.kafka] no answer of the broker yet: %s", error.args[0].str())
            return
        for partition in self._starts:
            if partition not in found:
                raise _no_topic(place_of(partition)[0], partition)
        if starts:
            self._consumer.incremental_assign(self._places(starts))
            self._note_assigned(starts)

    def _partitions(self, topic: str) -> list[str]:
        metadata = self._consumer.list_topics(topic, timeout=_REQUEST_SECONDS).topics[topic]
        if metadata.error is not None or not metadata.partitions:
            codes = self._kafka.KafkaError
            gone = (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC)
            if metadata.error is None or metadata.error.code() in gone:
                raise _no_topic(topic)
            raise self._kafka.KafkaException(metadata.error)
        return [partition_name(topic, number) for number in sorted(metadata.partitions)]

    def _offsets(self, partitions: Sequence[str]) -> dict[str, int]:
        """Return the offsets at which partitions begin that are assigned for the first time."""
        known = {name: self._starts[name] for name in partitions if name in self._starts}
        unknown = [name for name in partitions if name not in known]
        start = self._options.start
        if self._is_resumed or self.has_begun:
            start = "earliest"  # a partition that was added
        if isinstance(start, int | float):
            places = self._places(dict.fromkeys(unknown, int(start * 1e3)))
            answers = self._consumer.offsets_for_times(places, timeout=_REQUEST_SECONDS)
            for answer in answers:
                name = partition_name(answer.topic, answer.partition)
                known[name] = answer.offset if answer.offset >= 0 else self._bounds(name)[1]
            return known
        for name in unknown:
            if isinstance(start, str):
                known[name] = self._bounds(name)[start == "latest"]
            else:
                known[name] = start[name] if name in start else self._bounds(name)[0]
        return known

    def _bounds(self, partition: str) -> tuple[int, int]:
        """Return the offset of the first message, and that after the last one."""
        (place,) = self._places({partition: 0})
        low, high = self._consumer.get_watermark_offsets(place, timeout=_REQUEST_SECONDS)
        return low, high

    def _places(self, offsets: Mapping[str, int]) -> list[Any]:
        return [
            self._kafka.TopicPartition(*place_of(partition), offset)
            for partition, offset in offsets.items()
        ]

    def _note_assigned(self, offsets: Mapping[str, int]) -> None:
        with self._lock:
            self.has_begun = True
            self._assigned.update(offsets)
            new = {name: offset for name, offset in offsets.items() if name not in self._starts}
            self._starts.update(new)
            self._added.update(new)
        self._is_paused = False  # new partitions are not paused
        self._wake()

    # Calls of the client for a group, on the thread

    def _on_assign(self, consumer: Any, places: Sequence[Any]) -> None:
        names = [partition_name(place.topic, place.partition) for place in places]
        committed = consumer.committed(list(places), timeout=_REQUEST_SECONDS)
        saved = {partition_name(p.topic, p.partition): p.offset for p in committed if p.offset >= 0}
        with self._lock:
            for name, offset in saved.items():
                self._starts[name] = max(offset, self._starts.get(name, 0))
        offsets = self._offsets(names)
        consumer.incremental_assign(self._places(offsets))
        with self._lock:
            for name in names:
                self._added.setdefault(name, offsets[name])
        self._note_assigned(offsets)

    def _on_revoke(self, consumer: Any, places: Sequence[Any]) -> None:
        names = [partition_name(place.topic, place.partition) for place in places]
        with self._lock:
            for name in names:
                self._assigned.discard(name)
                dropped = self._buffers.pop(name, deque())
                self._release(list(dropped))
                if dropped:  # those that were taken are not read again by this consumer
                    self._starts[name] = dropped[0].offset
        consumer.incremental_unassign(places)


_GONE = (
    "the broker has removed messages that were not read: keep them longer, or begin anew with "
    "start='earliest' and without the state"
)


def _no_topic(topic: str, partition: str = "") -> OpError:
    which = f"partition {partition!r} of topic" if partition else "topic"
    return NotFoundError(
        f"[data.stream.kafka] expected {which} {topic!r} at the broker, got none; create the "
        "topic, or begin anew without the state if it was deleted and made again"
    )
