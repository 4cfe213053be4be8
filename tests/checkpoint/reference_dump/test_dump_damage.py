"""Damaged files end in a DataLossError with file and offset; nothing is allocated for them."""

import struct
import tracemalloc

import pyarrow as pa
import pytest

from monolith.checkpoint.reference_dump import describe_dumps, import_dumps, open_dumps
from monolith.errors import DataLossError
from monolith.table import Segment, Table, TableConfig
from monolith.table.optimizers import SGD, Adagrad
from tests.checkpoint.reference_dump.dump_writer import (
    block,
    entry,
    masked_crc,
    message,
    metadata,
    pieces,
    snappy,
    tfrecord,
    write,
)

pytestmark = pytest.mark.req("NT-SAVE-T10")

GOOD = entry(1, [1, 2], ("sgd", {}), time=5)
NAME = "MonolithHashTable_user-00000-of-00001"
MULTI = "MonolithMultiHashTable_0-00000-of-00001"


def error_of(folder, *segments):
    """The error of an import into a table `user`."""
    table = Table(TableConfig("user", segments or [Segment(2, SGD())]))
    with table, pytest.raises(DataLossError) as caught:
        import_dumps(open_dumps(folder), [table])
    return str(caught.value)


def head(size):
    length = struct.pack("<Q", size)
    return length + struct.pack("<I", masked_crc(length))


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (flipped(tfrecord([GOOD]), 9), "expected the checksum of the record's length, got another"),
        (flipped(tfrecord([GOOD]), 20), "expected the checksum of the record's bytes, got another"),
        (tfrecord([GOOD])[:-1], "expected a record of at least 43 bytes, got the end of the file"),
        (tfrecord([GOOD])[:5], "expected a record of at least 12 bytes, got the end of the file"),
        (head(1 << 60), f"expected a record of at most {1 << 24} bytes, got {1 << 60}"),
        (head((1 << 64) - 1), f"at most {1 << 24} bytes, got {(1 << 64) - 1}"),
        (tfrecord([b"\x15\x00"]), "expected an EntryDump message, got other bytes"),
        (tfrecord([b"\x08\x01"]), "expected an EntryDump message, got a field of another type"),
        (tfrecord([GOOD[9:]]), "expected a row with an id, got a row without one"),
        (tfrecord([entry(1, [1], ("sgd", {}))]), "expected 2 weights, got 1 "),
        (tfrecord([entry(1, [1, 1, 1], ("sgd", {}))]), "expected 2 weights, got more "),
        (tfrecord([entry(1, [1, 1])]), "expected 1 optimizer dumps, got 0 "),
        (
            tfrecord([entry(1, [1, 1], ("adagrad", {"norm": [1, 1]}))]),
            "expected sgd in segment '0', got adagrad",
        ),
        (
            tfrecord([entry(1, [1, 1], ("sgd", {}), time=-1)]),
            "expected last_update_ts_sec in [0, 4294967295], got -1",
        ),
    ],
)
def test_a_bad_second_record_is_refused_with_file_and_offset(tmp_path, second, text):
    write(tmp_path, "MonolithHashTable_user", tfrecord([GOOD]) + second)
    error = error_of(tmp_path)
    assert text in error
    assert f"({tmp_path}/{NAME}, record at byte {len(tfrecord([GOOD]))})" in error


def test_a_row_of_another_state_in_the_middle_is_refused(tmp_path):
    good = entry(1, [1, 1], ("adagrad", {"norm": [1, 1]}))
    bad = entry(2, [1, 1], ("adagrad", {"norm": [1]}))
    write(tmp_path, "MonolithHashTable_user", tfrecord([good, bad]))
    error = error_of(tmp_path, Segment(2, Adagrad()))
    assert "expected 2 numbers of adagrad.norm in segment '0', got 1" in error


def test_a_bad_record_of_compressed_rows_has_two_offsets(tmp_path):
    first, second = snappy([GOOD, GOOD]), snappy([GOOD, b"\x15"])
    write(tmp_path, "MonolithMultiHashTable_0", first + second)
    write(tmp_path, "MonolithMultiHashTable_0.meta", metadata({"user": [GOOD] * 4}))
    at = len(tfrecord([GOOD] * 3))
    text = f"record at byte {at} of the uncompressed stream, in the block at byte {len(first)})"
    assert text in error_of(tmp_path)


def varint(number):
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (b"\x00\x00", "expected a block of 4 bytes of its size, got 2"),
        (struct.pack(">I", 100) + b"x" * 9, "expected a block of 100 compressed bytes, got 9"),
        (
            struct.pack(">I", (1 << 24) + 1),
            f"at most {1 << 24} compressed bytes, got {(1 << 24) + 1}",
        ),
        (struct.pack(">I", 0), "expected a block of an uncompressed size, got none"),
        (struct.pack(">I", 5) + b"\xff" * 5, "expected a block of an uncompressed size, got none"),
        (
            struct.pack(">I", 6) + varint((1 << 32) - 1) + b"x",
            f"expected a block of at most {1 << 24} bytes, got {(1 << 32) - 1}",
        ),
        (struct.pack(">I", 3) + b"\x09\xff\xff", "expected a block of raw Snappy, got other bytes"),
    ],
)
def test_a_bad_block_is_refused_with_its_offset(tmp_path, bad, text):
    write(tmp_path, "MonolithMultiHashTable_0", snappy([GOOD]) + bad)
    write(tmp_path, "MonolithMultiHashTable_0.meta", metadata({"user": [GOOD, GOOD]}))
    error = error_of(tmp_path)
    assert text in error
    assert f"({tmp_path}/{MULTI}, block at byte {len(snappy([GOOD]))})" in error


def test_fewer_rows_than_the_metadata_says_are_data_loss(tmp_path):
    write(tmp_path, "MonolithMultiHashTable_0", snappy([GOOD, GOOD]))
    write(tmp_path, "MonolithMultiHashTable_0.meta", metadata({"user": [GOOD] * 3}))
    assert "expected 3 records, as the metadata says, got the end of the file after 2" in error_of(
        tmp_path
    )


def test_more_rows_than_the_metadata_says_are_data_loss(tmp_path):
    write(tmp_path, "MonolithMultiHashTable_0", snappy([GOOD, GOOD]))
    write(tmp_path, "MonolithMultiHashTable_0.meta", metadata({"user": [GOOD]}))
    assert "expected the end of the file, as the metadata says, got more" in error_of(tmp_path)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"x" * 9, "expected a length with its checksum"),
        (flipped(metadata({"user": []}), 3), "expected a length with its checksum"),
        (head(1 << 60) + b"x", f"expected {1 << 60} bytes with their checksum"),
        (flipped(metadata({"user": []}), 14), "expected 8 bytes with their checksum"),
        (tfrecord([b"\x08\x01"]), "expected MultiHashTableMetadata, got another message"),
        (tfrecord([b"\x0a\x01\xff"]), "expected MultiHashTableMetadata, got another message"),
        (tfrecord([b"\x0a\x09"]), "expected MultiHashTableMetadata, got another message"),
        (tfrecord([b"\x0a\x01x\x12\x00"]), "expected MultiHashTableMetadata, got another message"),
        (tfrecord([message("MultiHashTableMetadata", num_entries=1)]), "got another message"),
    ],
)
def test_bad_metadata_is_refused_with_file_and_offset(tmp_path, data, text):
    write(tmp_path, "MonolithMultiHashTable_0", snappy([GOOD]))
    write(tmp_path, "MonolithMultiHashTable_0.meta", data)
    error = error_of(tmp_path)
    assert text in error
    assert f"{tmp_path}/MonolithMultiHashTable_0.meta-00000-of-00001, record at byte 0)" in error


def test_metadata_beyond_the_limit_is_refused(tmp_path):
    write(tmp_path, "MonolithMultiHashTable_0", snappy([GOOD]))
    write(tmp_path, "MonolithMultiHashTable_0.meta", b"")
    with open(tmp_path / "MonolithMultiHashTable_0.meta-00000-of-00001", "wb") as file:
        file.truncate((1 << 26) + 1)
    assert f"at most {1 << 26} bytes of metadata, got {(1 << 26) + 1}" in error_of(tmp_path)


@pytest.mark.parametrize("kind", ["record", "block"])
def test_nothing_is_allocated_for_an_absurd_size(tmp_path, kind):
    if kind == "record":
        write(tmp_path, "MonolithHashTable_user", head(1 << 60))
    else:
        write(tmp_path, "MonolithMultiHashTable_0", struct.pack(">I", 6) + varint((1 << 32) - 1))
        write(tmp_path, "MonolithMultiHashTable_0.meta", metadata({"user": [GOOD] * 9}))
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        error_of(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 26
    assert pa.total_allocated_bytes() <= before


def test_a_record_and_a_block_of_the_limit_are_read(tmp_path):
    size = 1 << 24
    rest = size - len(GOOD)
    filler = b"\x7a" + varint(rest - 5) + b"\0" * (rest - 5)
    record = GOOD + filler
    assert len(record) == size
    write(tmp_path, "MonolithMultiHashTable_0", b"".join(map(block, pieces(record))))
    write(tmp_path, "MonolithMultiHashTable_0.meta", metadata({"user": [record]}))
    with Table(TableConfig("user", Segment(2, SGD()))) as table:
        import_dumps(open_dumps(tmp_path), [table])
        assert len(table) == 1


def test_a_damaged_filter_is_named(tmp_path):
    from monolith.checkpoint.reference_dump import num_cells

    write(tmp_path, "hash_filter_0", tfrecord([b"\xff"]))
    folder = open_dumps(tmp_path)
    with pytest.raises(DataLossError, match="expected HashFilterSplitMetaDump, got another"):
        num_cells(folder, folder.sets[0])
    assert describe_dumps(folder) == []
