"""Sources that take the URI of a stream in place of paths."""

import json
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith import data
from monolith.data.stream.open_stream import start_of
from tests.data.stream.test_kafka import consumer_of

COLUMNS = data.Columns(["user"], labels=["click"])


def write(folder, *users):
    folder.mkdir(exist_ok=True)
    with open(folder / "a.jsonl", "a") as file:
        for user in users:
            file.write(json.dumps({"user": user, "click": user % 2}) + "\n")


def users_of(pipeline, number):
    with iter(pipeline.batch(number)) as batches:
        return [ids for (ids,) in next(batches).features["user"].to_lists()]


def test_json_lines_of_a_folder_are_a_stream(tmp_path):
    write(tmp_path, 7, 8)
    source = data.jsonl(f"tail:{tmp_path}", columns=COLUMNS)
    assert source.is_stream
    assert users_of(source, 2) == [7, 8]


def test_types_and_pattern_reach_the_stream(tmp_path):
    write(tmp_path, 7, 8)
    (tmp_path / "other.txt").write_text("nothing\n")
    uri = f"tail:{tmp_path}?pattern=*.jsonl"
    source = data.jsonl(uri, columns=COLUMNS, types={"user": "int64"})
    assert users_of(source, 2) == [7, 8]


def test_columns_are_chosen_by_the_files_that_are_there(tmp_path):
    write(tmp_path, 7)
    source = data.jsonl(f"tail:{tmp_path}", label="click")
    assert source.columns.names() == ["user", "click"]


def test_parquet_files_that_appear_are_a_stream(tmp_path):
    pq.write_table(pa.table({"user": [7, 8], "click": [0.0, 1.0]}), tmp_path / "a.parquet")
    assert users_of(data.parquet(f"tail:{tmp_path}", columns=COLUMNS), 2) == [7, 8]


def test_a_format_that_streams_do_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected JSON lines, Arrow, Parquet or records, got csv"):
        data.csv(f"tail:{tmp_path}", columns=COLUMNS)


def test_a_wrong_uri_is_told(tmp_path):
    with pytest.raises(ValueError, match="expected options of pattern, got 'start'"):
        data.jsonl(f"tail:{tmp_path}?start=latest", columns=COLUMNS)


def kafka(uri, source=data.jsonl, **options):
    """Return the stage of topics; nothing is read."""
    return source(uri, columns=COLUMNS, **options).stage


def test_messages_have_the_format_of_the_source():
    assert kafka("kafka://a:1/t").rules.format == "json"
    assert kafka("kafka://a:1/t", data.arrow).rules.format == "arrow"
    assert kafka("kafka://a:1/t", data.examples).rules.format == "example"
    assert kafka("kafka://a:1/t?format=json", data.parquet).rules.format == "json"


def test_options_of_a_uri_reach_the_topics():
    uri = "kafka://a:1,b:2/t,u?group=g&start=2023-11-14T22:13:20&lateness=60&event_time=message"
    stage = kafka(uri, on_error="skip", types={"user": "int64"})
    options, rules = stage.options, stage.rules
    assert (options.servers, options.topics, options.group) == ("a:1,b:2", ("t", "u"), "g")
    assert (options.start, rules.lateness_seconds) == (1_700_000_000.0, 60.0)
    assert (rules.types, stage.bad.skips) == ({"user": "int64"}, True)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("1700000000.5", 1_700_000_000.5),
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000.0),
    ],
)
def test_a_start_is_a_word_or_a_time(text, start):
    assert start_of(text) == start


def test_settings_of_a_file_are_given_to_the_client_and_not_shown(tmp_path):
    path = tmp_path / "client.properties"
    path.write_text("# a user\nsasl.username = me\nsasl.password=a=b\n\n")
    pipeline = data.jsonl(f"kafka://a:1/t?settings={path}", columns=COLUMNS)
    assert pipeline.stage.options.settings == {"sasl.username": "me", "sasl.password": "a=b"}
    assert "a=b" not in f"{pipeline} {pipeline.describe()}"


def test_a_line_of_settings_without_a_value_is_told(tmp_path):
    path = tmp_path / "client.properties"
    path.write_text("sasl.username=me\nsecret\n")
    with pytest.raises(ValueError, match=r"expected name=value in line 2 of .*got no"):
        kafka(f"kafka://a:1/t?settings={path}")


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("kafka://a:1/t?start=soon", "expected a start of earliest, latest, seconds .*got 'soon'"),
        ("kafka://a:1/t?lateness=x", "expected lateness as seconds of at least 0, got 'x'"),
        ("kafka://a:1/t?lateness=-1", "expected lateness as seconds of at least 0, got '-1'"),
    ],
)
def test_wrong_options_of_topics_are_told(uri, text):
    with pytest.raises(ValueError, match=text):
        kafka(uri)


def test_a_format_that_messages_do_not_have_is_refused():
    with pytest.raises(ValueError, match="expected JSON, Arrow or records in messages, got parqu"):
        kafka("kafka://a:1/t", data.parquet)


def test_topics_need_columns():
    with pytest.raises(ValueError, match="expected columns for messages of 'kafka://a:1/t', got n"):
        data.jsonl("kafka://a:1/t", label="click")


@pytest.mark.dist
def test_the_lag_is_the_number_of_messages_after_a_position(broker):
    topic = broker.topic()
    broker.send(topic, *[b'{"user": 1, "click": 0}'] * 20)
    with iter(
        data.jsonl(f"kafka://{broker.servers}/{topic}", columns=COLUMNS).batch(20)
    ) as batches:
        next(batches)
        limit = time.monotonic() + 60
        while batches.lag != 0:
            assert time.monotonic() < limit
            time.sleep(0.05)
        consumer = consumer_of(batches)
        assert consumer.lag({f"{topic}/0": 5}) == 15
        assert consumer.lag({f"{topic}/7": 5}) is None
        assert consumer.lag({}) is None


def test_a_folder_knows_no_lag(tmp_path):
    write(tmp_path, 7)
    with iter(data.jsonl(f"tail:{tmp_path}", columns=COLUMNS).batch(1)) as batches:
        assert batches.lag is None
