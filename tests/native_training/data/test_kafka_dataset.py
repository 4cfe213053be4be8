import pytest

from monolith.data import Columns, Framing
from monolith.errors import InvalidArgumentError
from monolith.native_training.data.datasets import KafkaDataset
from monolith.util.protobuf import put_bytes
from tests.data.records.record_bytes import example, fids
from tests.data.samples import users
from tests.data.stream.conftest import broker  # noqa: F401  (a fixture)
from tests.time_limits import at_once

COLUMNS = Columns(["user"])


def record(number):
    return example({"user": put_bytes(1, fids(number))})


def make(topics="clicks", servers="none:1", **options):
    return KafkaDataset(topics, "group", servers, columns=COLUMNS, **options)


@pytest.mark.dist
@pytest.mark.parametrize("has_header", [True, False])
def test_records_are_read_until_the_topic_is_idle(broker, has_header):  # noqa: F811
    framing = Framing(has_sort_id=True)
    topic, values = broker.topic(), [record(1), record(2)]
    broker.send(topic, *([b"".join(map(framing.frame, values))] if has_header else values))
    options = {"has_sort_id": True} if has_header else {}
    dataset = KafkaDataset(
        [topic],
        f"group of {topic}",
        [broker.servers],
        columns=COLUMNS,
        has_header=has_header,
        variant_type="example",
        stream_timeout=0,
        message_poll_timeout=3_000,
        configuration=["conf.topic.auto.offset.reset=smallest"],
        kafka_other_metadata="client.id=a=b,socket.keepalive.enable=true",
        **options,
    )
    with at_once():
        (batch,) = dataset.batch(8)
    assert [user % 2**48 for user in users([batch])] == [1, 2]


def test_a_partition_begins_at_its_end_unless_the_configuration_says_otherwise():
    assert make().stage.options.start == "latest"
    assert make(configuration=["auto.offset.reset=earliest"]).stage.options.start == "earliest"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"stream_timeout": -7}, ValueError, "Invalid stream_timeout value: -7 ,set it to -1 to"),
        ({"variant_type": "text"}, InvalidArgumentError, "expected variant_type in example"),
        ({"filter_empty": True}, InvalidArgumentError, "filter_empty=False"),
        ({"has_header": False, "kafka_dump": True}, InvalidArgumentError, "has_header=True"),
        ({"configuration": ["group"]}, ValueError, "a setting as key=value"),
    ],
)
def test_wrong_arguments_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        make(**options)
