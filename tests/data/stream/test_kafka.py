import gc
import json
import sys
import time

import pyarrow as pa
import pytest

from monolith.data import Columns, Framing, RecordFormat, stream
from monolith.data.stream.kafka import LATE
from monolith.data.stream.kafka_consumer import KafkaConsumer
from monolith.errors import DataLossError, FailedPreconditionError, NotFoundError
from monolith.util.protobuf import put_bytes
from tests.data.records.record_bytes import batch, example, fids, named_list
from tests.data.samples import users
from tests.data.stream.folders import read
from tests.time_limits import AT_ONCE, at_once

pytestmark = pytest.mark.dist

COLUMNS = Columns(["user"])


def clicks(*numbers):
    """Return a message of JSON for each number."""
    return [json.dumps({"user": number}).encode() for number in numbers]


def source(broker, topic, size=4, seconds=0.05, columns=COLUMNS, **options):
    pipeline = stream.kafka(broker.servers, topic, columns=columns, **options)
    return pipeline.batch(size, seconds=seconds)


def resumed(pipeline, batches):
    return pipeline.resume(json.loads(json.dumps(batches.state_dict())))


def consumer_of(batches):
    return batches._copier._cursor._cursor._source._consumer


def until(is_true):
    end = time.monotonic() + AT_ONCE
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.005)


def arrow(*numbers):
    table, out = pa.table({"user": numbers, "other": ["x"] * len(numbers)}), pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


def record(number):
    return example({"user": put_bytes(1, fids(number))})


def record_batch(*numbers):
    return batch(len(numbers), named_list("user", [put_bytes(1, fids(n)) for n in numbers]))


def framed(*records):
    return b"".join(map(Framing().frame, records))


FORMATS = {
    "object": ("json", clicks(1, 2)),
    "lines": ("json", [b"\n".join(clicks(1, 2)) + b"\n"]),
    "array": ("json", [b" [" + b", ".join(clicks(1, 2)) + b"]"]),
    "arrow": ("arrow", [arrow(1, 2)]),
    "example": ("example", [record(1), record(2)]),
    "example_batch": ("example_batch", [record_batch(1, 2)]),
    "framed": (RecordFormat("example"), [framed(record(1), record(2))]),
    "framed batches": (RecordFormat("example_batch"), [framed(record_batch(1), record_batch(2))]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_message_has_one_sample_or_many(broker, name):
    message_format, values = FORMATS[name]
    topic = broker.topic()
    broker.send(topic, *values)
    with at_once(), iter(source(broker, topic, message_format=message_format)) as batches:
        assert [user % 2**48 for user in read(batches, 2)] == [1, 2]


def test_messages_that_come_later_are_read(broker):
    topic = broker.topic()
    with at_once(), iter(source(broker, topic).prefetch(2)) as batches:
        for number in range(3):
            broker.send(topic, *clicks(number))
            assert read(batches, 1) == [number]


@pytest.mark.req("RT-T1")
@pytest.mark.parametrize("depth", [0, 2])
def test_a_resumed_stream_reads_the_rest_once(broker, depth):
    topic = broker.topic(3)
    for partition in range(3):
        values = [
            b"\n".join(clicks(*range(i, i + 3)))
            for i in range(100 * partition, 100 * partition + 12, 3)
        ]
        broker.send(topic, *values, partition=partition)
    pipeline = source(broker, topic, size=5)
    pipeline = pipeline.prefetch(depth) if depth else pipeline
    seen = []
    with at_once():
        batches = iter(pipeline)
        for _ in range(6):
            seen += users([next(batches)])
            state = json.loads(json.dumps(batches.state_dict()))
            batches.close()
            broker.send(topic, *clicks(1_000 + len(seen)), partition=1)  # blocks are larger now
            batches = pipeline.resume(state)
        seen += read(batches, 36 + 6 - len(seen))
        batches.close()
    assert len(seen) == len(set(seen)) == 42


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", [1, 2, 3, 4]), ("latest", [4]), ({"TOPIC/0": 2}, [3, 4]), ({}, [1, 2, 3, 4])],
)
def test_a_stream_begins_where_it_is_told(broker, start, expected):
    topic = broker.topic()
    broker.send(topic, *clicks(1, 2, 3))
    if isinstance(start, dict):
        start = {name.replace("TOPIC", topic): offset for name, offset in start.items()}
    with at_once(), iter(source(broker, topic, start=start)) as batches:
        until(lambda: consumer_of(batches)._assigned)
        broker.send(topic, *clicks(4))
        assert read(batches, len(expected)) == expected


def test_a_start_by_time_asks_the_broker(broker, monkeypatch):
    """The broker of the tests does not know times, so its answer is replaced."""
    topic, asked = broker.topic(), []
    broker.send(topic, *clicks(1, 2, 3))

    class Consumer:
        def __init__(self, *arguments, **options):
            self._consumer = original(*arguments, **options)

        def __getattr__(self, name):
            return getattr(self._consumer, name)

        def offsets_for_times(self, places, timeout):
            asked.extend(place.offset for place in places)
            return [type(place)(place.topic, place.partition, 1) for place in places]

    import confluent_kafka

    original = confluent_kafka.Consumer
    monkeypatch.setattr(confluent_kafka, "Consumer", Consumer)
    with at_once(), iter(source(broker, topic, start=1_700_000_000.5)) as batches:
        assert read(batches, 2) == [2, 3]
    assert asked == [1_700_000_000_500]


def test_a_position_that_the_broker_does_not_have_is_an_error(broker):
    topic = broker.topic()
    broker.send(topic, *clicks(1))
    with (
        at_once(),
        iter(source(broker, topic, start={f"{topic}/0": 99})) as batches,
        pytest.raises(DataLossError, match=rf"partition '{topic}/0' from its position on"),
    ):
        next(batches)


BAD = {
    "text": ("json", b"{", "expected messages of the format"),
    "type": ("json", b'{"user": {"a": 1}}', "expected messages of the format"),
    "array": ("json", b"[[[", "expected messages of the format"),
    "arrow": ("arrow", b"ARROW", "expected messages of the format"),
    "record": ("example", b"\xff", "expected messages of the format"),
    "framing": (RecordFormat("example"), b"\x07" * 9, "expected messages of the format"),
    "large": ("json", b" " * 200 + clicks(7)[0], "expected messages within max_message_bytes"),
    "nothing": ("json", None, "expected messages with a value"),
}
GOOD = {"json": clicks(1)[0], "arrow": arrow(1), "example": record(1)}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_message_is_an_error_or_counted_and_sent_on(broker, name):
    message_format, value, reason = BAD[name]
    good = framed(record(1)) if name == "framing" else GOOD[message_format]
    topic, letters = broker.topic(), broker.topic()
    broker.send(topic, good, value, good)
    options = {
        "message_format": message_format,
        "max_message_bytes": 700 if name != "large" else 100,
    }
    if name == "arrow":
        options["max_message_bytes"] = 10_000
    text = f"partition '{topic}/0', message 1"
    with (
        at_once(),
        iter(source(broker, topic, **options)) as batches,
        pytest.raises((DataLossError, TypeError), match=text),
    ):
        next(batches)
    options |= {"on_error": "skip", "dead_letter_topic": letters}
    with at_once(), iter(source(broker, topic, **options)) as batches:
        assert [user % 2**48 for user in read(batches, 2)] == [1, 1]
        (count,) = batches.num_skipped.values()
        assert count == 1
    (letter,) = broker.read(letters, 1)
    assert letter.value() == value
    headers = {key: text.decode() for key, text in letter.headers()}
    assert reason in headers["reason"]
    assert (headers["topic"], headers["offset"]) == (topic, "1")


def test_the_good_samples_of_a_message_are_kept(broker):
    topic = broker.topic()
    broker.send(topic, b'{"user": 1}\n{\n{"user": 2}')
    with at_once(), iter(source(broker, topic, on_error="skip")) as batches:
        assert read(batches, 2) == [1, 2]
        assert list(batches.num_skipped.values()) == [1]


def test_the_time_of_the_newest_message_travels_with_the_batch(broker):
    topic = broker.topic()
    broker.send(topic, *clicks(1, 2, 3), times=[5_500, 7_250, 6_000])
    with at_once(), iter(source(broker, topic, size=2)) as batches:
        assert [next(batches).event_time for _ in range(2)] == [7.25, 6.0]


@pytest.mark.parametrize(("late", "expected"), [("drop", [1, 2, 4]), ("keep", [1, 2, 3, 4])])
def test_late_samples_are_counted(broker, late, expected):
    topic = broker.topic()
    broker.send(topic, *clicks(1, 2, 3, 4), times=[10_000, 20_000, 9_999, 10_000])
    pipeline = source(broker, topic, size=1, lateness_seconds=10, late=late)
    with at_once(), iter(pipeline) as batches:
        assert read(batches, len(expected)) == expected
        assert batches.num_skipped == {LATE: 1}
        with resumed(pipeline, batches) as rest:  # knows the newest time
            broker.send(topic, *clicks(5, 6), times=[9_000, 21_000])
            assert read(rest, 1) == [6 if late == "drop" else 5]


def test_lateness_goes_by_the_column_of_times_if_it_is_the_event_time(broker):
    topic = broker.topic()
    broker.send(
        topic,
        *(json.dumps({"user": n, "time": t}).encode() for n, t in ((1, 50), (2, 30), (3, 45))),
    )
    columns = Columns(["user"], time="time")
    options = {"event_time": "column", "lateness_seconds": 10}
    with at_once(), iter(source(broker, topic, columns=columns, **options)) as batches:
        samples = next(batches)
        assert (users([samples]), samples.event_time) == ([1, 3], 50.0)


def test_partitions_that_are_added_are_read_from_their_begin(broker, monkeypatch):
    """The broker of the tests cannot add partitions, so one is hidden at first."""
    topic, hidden = broker.topic(2), [True]
    every = KafkaConsumer._partitions
    monkeypatch.setattr(
        KafkaConsumer, "_partitions", lambda self, t: every(self, t)[: 1 if hidden[0] else None]
    )
    broker.send(topic, *clicks(10), partition=1)
    pipeline = source(broker, topic, start="latest", refresh_seconds=0.05)
    with at_once(), iter(pipeline) as batches:
        until(lambda: consumer_of(batches)._assigned)
        broker.send(topic, *clicks(1))
        assert read(batches, 1) == [1]
        hidden[0] = False
        assert read(batches, 1) == [10]
        broker.send(topic, *clicks(2))
        with resumed(pipeline, batches) as rest:
            assert read(rest, 1) == [2]


def test_a_topic_that_is_gone_is_an_error(broker, monkeypatch):
    topic, names = broker.topic(), []
    every = KafkaConsumer._partitions
    monkeypatch.setattr(KafkaConsumer, "_partitions", lambda self, t: every(self, names[0]))
    names.append(topic)
    broker.send(topic, *clicks(1))
    with at_once(), iter(source(broker, topic, refresh_seconds=0.05)) as batches:
        assert read(batches, 1) == [1]
        names[0] = "deleted-topic"
        monkeypatch.setattr(KafkaConsumer, "_partitions", lambda self, t: [])
        with pytest.raises(NotFoundError, match=rf"partition '{topic}/0' of topic '{topic}'"):
            next(batches)


def test_a_broker_that_hangs_is_waited_for(broker):
    topic = broker.topic()
    broker.send(topic, *clicks(1))
    with at_once(), iter(source(broker, topic)) as batches:
        assert read(batches, 1) == [1]
        with broker.stopped():
            time.sleep(1.0)  # several fetches
        broker.send(topic, *clicks(2))
        assert read(batches, 1) == [2]


def test_a_broker_that_is_away_is_waited_for(broker):
    topic = broker.topic()
    broker.send(topic, *clicks(1))
    with at_once(), iter(source(broker, topic, refresh_seconds=0.1)) as batches:
        assert read(batches, 1) == [1]
        with broker.away():
            time.sleep(0.5)
        broker.send(topic, *clicks(2))
        assert read(batches, 1) == [2]


@pytest.mark.parametrize("group", [None, "slow"])
def test_a_slow_reader_bounds_the_buffer(broker, group):
    topic = broker.topic()
    numbers = range(200)
    broker.send(topic, *clicks(*numbers))
    with (
        at_once(),
        iter(source(broker, topic, size=10, buffer_messages=20, group=group)) as batches,
    ):
        consumer, most = consumer_of(batches), []
        until(lambda: consumer._is_paused if group else consumer._num_messages >= 20)
        seen = []
        while len(seen) < 200:
            most.append(consumer._num_messages)
            seen += users([next(batches)])
    assert seen == list(numbers)
    assert max(most) <= 40
    assert consumer._num_messages == consumer._num_bytes == 0


def test_members_of_a_group_divide_the_partitions(broker):
    topic = broker.topic(2)
    for partition in (0, 1):
        broker.send(
            topic, *clicks(*range(100 * partition, 100 * partition + 5)), partition=partition
        )
    often = {"group.protocol": "consumer"}
    pipeline = source(broker, topic, size=1, group=f"group of {topic}", settings=often)
    with at_once(), iter(pipeline) as one:
        consumer = consumer_of(one)
        until(lambda: len(consumer._assigned) == 2)
        with iter(pipeline) as two:
            until(lambda: len(consumer._assigned) == 1)
            (ours,) = consumer._assigned
            assert set(consumer._buffers) <= {ours}  # what was not read is dropped
            until(lambda: len(consumer_of(two)._assigned) == 1)
            of_ours, of_theirs = (range(5), range(100, 105))[:: 1 if ours.endswith("/0") else -1]
            assert read(one, 5) == list(of_ours)
            assert read(two, 5) == list(of_theirs)
            broker.send(topic, *clicks(7), partition=int(ours[-1]))
            assert read(one, 1) == [7]


def test_an_iteration_that_is_forgotten_leaves_the_broker(broker):
    topic = broker.topic()
    broker.send(topic, *clicks(1))
    batches = iter(source(broker, topic))
    next(batches)
    consumer = consumer_of(batches)
    del batches
    gc.collect()
    until(lambda: not consumer._thread.is_alive())


def test_settings_are_not_shown():
    pipeline = stream.kafka(
        "none:1", "clicks", columns=COLUMNS, settings={"sasl.password": "secret"}
    )
    assert "secret" not in repr(pipeline) + str(pipeline.describe())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": []}, "at least one topic"),
        ({"message_format": "csv"}, "a RecordFormat or a format of"),
        ({"message_format": "arrow", "types": {"a": "int64"}}, "types with json only"),
        ({"start": "begin"}, "expected start"),
        ({"event_time": "column"}, "a column of times"),
        ({"late": "no"}, "expected late"),
        ({"on_error": "no"}, "on_error"),
        ({"dead_letter_topic": "letters"}, "nothing is skipped"),
        ({"buffer_messages": 0}, "expected buffer_messages above 0"),
    ],
)
def test_wrong_arguments_are_refused(options, text):
    options = {"topics": "clicks", "columns": COLUMNS, **options}
    with pytest.raises(ValueError, match=text):
        stream.kafka("none:1", **options)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(FailedPreconditionError, match=r"monolith-torch\[kafka\]"):
        stream.kafka("none:1", "clicks", columns=COLUMNS)


def test_a_topic_that_is_not_there_is_an_error(broker):
    with (
        at_once(),
        iter(source(broker, "no-such-topic")) as batches,
        pytest.raises(NotFoundError, match="topic 'no-such-topic'"),
    ):
        next(batches)
