import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith.data import Columns, Framing, RecordFormat, stream
from monolith.errors import DataLossError, NotFoundError
from monolith.util.protobuf import put_bytes
from tests.data.records.record_bytes import example, fids
from tests.data.samples import users
from tests.data.stream.folders import COLUMNS, Later, add, append, read, tailed
from tests.time_limits import at_once


@pytest.mark.parametrize("depth", [0, 2])
def test_lines_that_come_later_are_read(tmp_path, depth):
    add(tmp_path, "a.jsonl", range(3))
    pipeline = tailed(tmp_path) if not depth else tailed(tmp_path).prefetch(depth)
    with at_once(), iter(pipeline) as batches:
        assert read(batches, 3) == [0, 1, 2]
        with Later(batches, lambda: add(tmp_path, "a.jsonl", [3])):
            assert read(batches, 1) == [3]
        with Later(batches, lambda: add(tmp_path, "b.jsonl", [4])):
            assert read(batches, 1) == [4]


def test_a_line_counts_once_its_end_is_there(tmp_path):
    add(tmp_path, "a.jsonl", [0])
    add(tmp_path, "a.jsonl", [1], end="")
    with at_once(), iter(tailed(tmp_path)) as batches:
        assert read(batches, 1) == [0]
        with Later(batches, lambda: append(tmp_path / "a.jsonl", "\n")):
            assert read(batches, 1) == [1]


def test_growing_files_are_read_in_turns(tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.stream.growing._BLOCK", 60)  # two lines
    add(tmp_path, "a.jsonl", range(4))
    add(tmp_path, "b.jsonl", range(10, 14))
    with at_once(), iter(tailed(tmp_path)) as batches:
        assert read(batches, 8) == [0, 1, 10, 11, 2, 3, 12, 13]


def test_a_line_longer_than_a_block_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.stream.growing._BLOCK", 4)
    add(tmp_path, "a.jsonl", range(3))
    with at_once(), iter(tailed(tmp_path)) as batches:
        assert read(batches, 3) == [0, 1, 2]


@pytest.mark.parametrize("name", [".a.jsonl", "_a.jsonl", ".hidden/a.jsonl", "a.txt"])
def test_names_that_do_not_fit_are_not_read(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    add(tmp_path, name, [7])
    add(tmp_path, "b.jsonl", [8])
    with at_once(), iter(tailed(tmp_path, pattern="*.jsonl")) as batches:
        assert read(batches, 1) == [8]
        assert list(positions(batches)) == ["b.jsonl"]


def test_folders_inside_are_read(tmp_path):
    (tmp_path / "day").mkdir()
    add(tmp_path / "day", "a.jsonl", [7])
    with at_once(), iter(tailed(tmp_path)) as batches:
        assert read(batches, 1) == [7]
        assert list(positions(batches)) == ["day/a.jsonl"]


def positions(batches):
    return batches.state_dict()["state"]["source"]["positions"]


def resumed(pipeline, batches):
    return pipeline.resume(json.loads(json.dumps(batches.state_dict())))


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_a_resumed_stream_reads_the_rest_once(tmp_path, monkeypatch, depth, count):
    monkeypatch.setattr("monolith.data.stream.growing._BLOCK", 80)  # two or three lines
    add(tmp_path, "a.jsonl", range(10))
    add(tmp_path, "b.jsonl", range(20, 30))
    pipeline = tailed(tmp_path, 3) if not depth else tailed(tmp_path, 3).prefetch(depth)
    with at_once(), iter(pipeline) as batches:
        first = [user for _ in range(count) for user in users([next(batches)])]
        add(tmp_path, "a.jsonl", range(10, 15))  # a block is larger now
        add(tmp_path, "0.jsonl", range(40, 45))
        with resumed(pipeline, batches) as rest:
            last = read(rest, 30 - len(first))
    assert sorted(first + last) == [*range(15), *range(20, 30), *range(40, 45)]


def test_a_filter_and_a_shuffle_are_resumed_within_their_windows(tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.stream.growing._BLOCK", 80)
    for first in (0, 100):
        add(tmp_path, f"{first}.jsonl", range(first, first + 30))
    source = stream.tail(tmp_path, columns=COLUMNS)
    pipeline = source.filter(is_odd, reads=["user"]).shuffle(7, seed=2).batch(2, seconds=0.05)
    with at_once(), iter(pipeline) as batches:
        got = read(batches, 10)  # of two windows, the second one in part
        for first in (0, 50, 100):
            add(tmp_path, f"{first}.jsonl", range(first + 30, first + 40))
        with resumed(pipeline, batches) as rest:
            assert sorted(users([next(rest), next(rest)])) == sorted(read(batches, 4))
            got += read(rest, 42 - 14)  # six windows in all
    assert len(set(got)) == len(got)
    assert {user % 2 for user in got} == {1}


def is_odd(block):
    return block["user"].to_numpy() % 2 == 1


def test_a_file_may_be_removed_after_it_was_read(tmp_path):
    add(tmp_path, "a.jsonl", [0])
    pipeline = tailed(tmp_path)
    with at_once(), iter(pipeline) as batches:
        read(batches, 1)
        (tmp_path / "a.jsonl").unlink()
        add(tmp_path, "b.jsonl", [1])
        assert read(batches, 1) == [1]
        assert list(positions(batches)) == ["b.jsonl"]
        with resumed(pipeline, batches) as rest:
            add(tmp_path, "a.jsonl", [2])  # of a later day
            assert read(rest, 1) == [2]


def test_a_file_that_is_removed_before_it_was_read_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.stream.growing._BLOCK", 30)
    add(tmp_path, "a.jsonl", range(3))
    pipeline = tailed(tmp_path, size=1)
    with at_once(), iter(pipeline) as batches:
        read(batches, 1)
        os.rename(tmp_path / "a.jsonl", tmp_path / ".gone")
        with pytest.raises((NotFoundError, DataLossError), match=r"a\.jsonl.* remove files after"):
            read(batches, 2)
        with (
            pytest.raises(DataLossError, match=r"a\.jsonl' until .* position 26 of 78"),
            resumed(pipeline, batches) as rest,
        ):
            next(rest)


def test_a_truncated_file_is_an_error(tmp_path):
    add(tmp_path, "a.jsonl", range(3))
    with at_once(), iter(tailed(tmp_path)) as batches:
        read(batches, 3)
        os.truncate(tmp_path / "a.jsonl", 26)
        with pytest.raises(DataLossError, match=r"a\.jsonl' of at least 78 bytes.* got 26"):
            next(batches)


def test_a_file_that_was_replaced_is_an_error(tmp_path):
    add(tmp_path, "a.jsonl", [0])
    with at_once(), iter(tailed(tmp_path)) as batches:
        read(batches, 1)
        add(tmp_path, ".new", [1, 2])
        os.rename(tmp_path / ".new", tmp_path / "a.jsonl")
        with pytest.raises(DataLossError, match=r"a\.jsonl' to stay the same file"):
            next(batches)


def test_lines_that_changed_since_the_state_are_an_error(tmp_path):
    add(tmp_path, "a.jsonl", range(6))
    pipeline = tailed(tmp_path, size=2)
    with at_once(), iter(pipeline) as batches:
        next(batches)
        (tmp_path / "a.jsonl").write_text("x" * 78)
        with (
            pytest.raises(DataLossError, match=r"from 0 to 156 in file .*a\.jsonl"),
            resumed(pipeline, batches) as rest,
        ):
            next(rest)


@pytest.mark.parametrize("bad", ["{", '{"user": 1.5, "time": 3}', "[1]", '{"user": 1}'])
def test_a_bad_line_is_an_error_or_counted(tmp_path, bad):
    add(tmp_path, "a.jsonl", [0, 1])
    append(tmp_path / "a.jsonl", bad + "\n")
    add(tmp_path, "a.jsonl", [2])
    with (
        at_once(),
        iter(tailed(tmp_path)) as batches,
        pytest.raises((DataLossError, TypeError), match=r"a\.jsonl"),
    ):
        next(batches)
    with at_once(), iter(tailed(tmp_path, on_error="skip")) as batches:
        assert read(batches, 3) == [0, 1, 2]
        assert sum(batches.num_skipped.values()) == 1


def test_types_may_change_between_blocks(tmp_path):
    columns = Columns(["user"], ["price"])
    with at_once(), iter(tailed(tmp_path, columns=columns)) as batches:
        for user, price in ((1, 2), ("a", 2.5), (3, 0)):
            text = json.dumps({"user": user, "price": price, "other": {"x": [1]}})
            append(tmp_path / "a.jsonl", text + "\n")
            assert next(batches).dense["price"].tolist() == [price]


def test_declared_types_are_kept(tmp_path):
    (tmp_path / "a.jsonl").write_text(f'{{"user": {2**63 + 1}}}\n')
    columns, types = Columns(["user"]), {"user": "uint64"}
    with at_once(), iter(tailed(tmp_path, columns=columns, types=types)) as batches:
        assert read(batches, 1) == [-(2**63) + 1]


def record(user):
    return Framing().frame(example({"user": put_bytes(1, fids(user))}))


RECORDS = {"file_format": RecordFormat("example", keep_fid_v1=True), "columns": Columns(["user"])}


def test_records_are_read_as_their_last_byte_comes(tmp_path):
    data, path = b"".join(map(record, range(4))), tmp_path / "a.records"
    append(path, data[:-1])
    pipeline = tailed(tmp_path, **RECORDS)
    with at_once(), iter(pipeline) as batches:
        assert read(batches, 3) == [0, 1, 2]
        with resumed(pipeline, batches) as rest, Later(rest, lambda: append(path, data[-1:])):
            assert read(rest, 1) == [3]


def test_a_record_larger_than_a_block_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.stream.growing._BLOCK", 4)
    append(tmp_path / "a.records", record(7) + record(8))
    with at_once(), iter(tailed(tmp_path, **RECORDS)) as batches:
        assert read(batches, 2) == [7, 8]


def test_a_bad_record_is_an_error_or_counted(tmp_path):
    append(tmp_path / "a.records", record(7) + Framing().frame(b"\xff") + record(8))
    with (
        at_once(),
        iter(tailed(tmp_path, **RECORDS)) as batches,
        pytest.raises(DataLossError, match=r"a\.records', byte .* on_error"),
    ):
        next(batches)
    with at_once(), iter(tailed(tmp_path, **RECORDS, on_error="skip")) as batches:
        assert read(batches, 2) == [7, 8]
        assert sum(batches.num_skipped.values()) == 1


def test_a_file_in_which_no_record_can_be_located_is_an_error(tmp_path):
    append(tmp_path / "a.records", (0xFEFEFEFE).to_bytes(8, "little") + bytes(8))
    with (
        at_once(),
        iter(tailed(tmp_path, **RECORDS, on_error="skip")) as batches,
        pytest.raises(DataLossError, match="DEADBEEF"),
    ):
        next(batches)


def write_table(folder, name, numbers):
    rows = pa.table({"user": numbers, "time": [1_000 + number for number in numbers]})
    pq.write_table(rows, folder / f".{name}", row_group_size=3)
    os.rename(folder / f".{name}", folder / name)


def test_whole_files_are_read_in_the_order_of_their_names(tmp_path):
    write_table(tmp_path, "b.parquet", [*range(10, 18)])
    write_table(tmp_path, "a.parquet", [*range(8)])
    pipeline = tailed(tmp_path, file_format="parquet")
    with at_once(), iter(pipeline) as batches:
        first = read(batches, 4)
        with resumed(pipeline, batches) as rest:
            assert first + read(rest, 12) == [*range(8), *range(10, 18)]
            with Later(rest, lambda: write_table(tmp_path, "0.parquet", [20])):
                assert read(rest, 1) == [20]
            assert positions(rest)["a.parquet"][0] is None


def test_a_whole_file_that_grows_is_an_error(tmp_path):
    write_table(tmp_path, "a.parquet", [0])
    with at_once(), iter(tailed(tmp_path, file_format="parquet")) as batches:
        read(batches, 1)
        append(tmp_path / "a.parquet", b"more")
        with pytest.raises(DataLossError, match=r"a\.parquet' of \d+ bytes.* rename them"):
            next(batches)


def test_the_newest_event_time_travels_with_the_batch(tmp_path):
    add(tmp_path, "a.jsonl", [3, 1, 2, 7])
    with at_once(), iter(tailed(tmp_path, size=3)) as batches:
        assert [next(batches).event_time for _ in range(2)] == [1_003.0, 1_007.0]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"folder": "missing"}, NotFoundError, "expected a local folder"),
        ({"file_format": "csv"}, ValueError, "a RecordFormat or a format of"),
        ({"on_error": "ignore"}, ValueError, "expected on_error"),
        ({"columns": COLUMNS, "label": "x"}, ValueError, "columns or label"),
        ({"file_format": "parquet", "types": {"a": "int64"}}, ValueError, "types with jsonl"),
        ({"file_format": RecordFormat("example", compression="gzip")}, ValueError, "without comp"),
        ({}, NotFoundError, "expected files in .* columns="),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, options, error, text):
    with pytest.raises(error, match=text):
        stream.tail(tmp_path / options.pop("folder", ""), **options)


def test_columns_are_chosen_by_the_files_that_are_there(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"user": 1, "price": 0.5, "label": 1}\n')
    assert stream.tail(tmp_path).columns.names() == ["user", "price", "label"]
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(NotFoundError, match="expected a sample in"):
        stream.tail(tmp_path)


def test_compressed_text_is_refused(tmp_path):
    add(tmp_path, "a.jsonl.gz", [0])
    with iter(tailed(tmp_path)) as batches, pytest.raises(DataLossError, match="plain text"):
        next(batches)
