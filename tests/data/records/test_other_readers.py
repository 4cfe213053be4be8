"""Frames and files agree with other readers and writers, in both directions."""

import struct
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.summary.writer.record_writer import RecordWriter as BoardWriter

from monolith import data
from monolith.data.files.byte_stream import compress
from monolith.data.files.tabular import write_rows
from tests.data.records.protos import TF_EXAMPLE, classes
from tests.data.records.test_framing import ALL
from tests.data.samples import table, users

pytestmark = pytest.mark.req("G-T5")


def tf_record(user):
    message = classes(TF_EXAMPLE)["Example"]()
    message.features.feature["user"].int64_list.value.append(user)
    return message.SerializeToString()


def test_tensorboard_reads_our_tfrecords(tmp_path):
    records = [b"", b"x" * 70_000, *data.RecordWriter("tf_example").records(table(5))]
    data.RecordWriter("tf_example").write_records(records, tmp_path / "f")
    assert list(RawEventFileLoader(str(tmp_path / "f")).Load()) == records


def test_tfrecords_of_tensorboard_are_read(tmp_path):
    with open(tmp_path / "f", "wb") as file:
        writer = BoardWriter(file)
        for user in (7, -8, 1 << 62):
            writer.write(tf_record(user))
    source = data.tfrecords(tmp_path / "f", columns=data.Columns(["user"]))
    assert users(source.batch(9)) == [7, -8, 1 << 62]


def u64(number):
    return struct.pack("<Q", number)


def read_frames(file, lagrangex_header, kafka_dump_prefix, has_sort_id, kafka_dump):
    """Type, key and bytes of each record, by the published order of headers."""
    at, frames = 0, []

    def word():
        nonlocal at
        at += 8
        return struct.unpack_from("<Q", file, at - 8)[0]

    while at < len(file):
        kind, key, sort_size = 0, 0, 0
        if lagrangex_header:
            header = word()
            kind, key = header & 0xFF, (header & 0xFFFFFFFF) >> 8 << 8
        else:
            if kafka_dump_prefix:
                sort_size = word()
                if sort_size == 0:
                    word()
            if has_sort_id:
                sort_size = sort_size or word()
                at += sort_size
            if kafka_dump:
                word()
        size = word()
        frames.append((kind, key, file[at : at + size]))
        at += size
    return frames


@pytest.mark.parametrize("options", ALL)
def test_an_independent_reader_reads_our_frames(options):
    writer = data.RecordWriter("instance", data.Framing(**options))
    records, kind = writer.records(table(9)), int(options["lagrangex_header"])
    frames = read_frames(writer.frames(records), **options)
    assert frames == [(kind, 0, record) for record in records]


@pytest.mark.parametrize("options", ALL)
@given(sorts=st.lists(st.binary(max_size=20), min_size=1, max_size=5), key=st.integers(0, 1 << 24))
def test_frames_of_an_independent_writer_are_read(options, sorts, key, tmp_path_factory):
    parts = []
    records = data.RecordWriter("example").records(table(len(sorts)).select(["user"]))
    for sort, record in zip(sorts, records, strict=True):
        if options["lagrangex_header"]:
            parts.append(bytes([3]) + (key % (1 << 24)).to_bytes(3, "little") + bytes(4))
        else:
            if options["kafka_dump_prefix"]:
                sort = sort if options["has_sort_id"] else b""
                parts.append(u64(len(sort)) if sort else u64(0) + u64(99))
            if options["has_sort_id"]:
                is_told = options["kafka_dump_prefix"] and sort
                parts += [b"" if is_told else u64(len(sort)), sort]
            if options["kafka_dump"]:
                parts.append(u64(12345))
        parts += [u64(len(record)), record]
    path = tmp_path_factory.mktemp("frames") / "f"
    path.write_bytes(b"".join(parts))
    columns = data.Columns(["user", "data_source_key"])
    (batch,) = data.examples(path, columns=columns, framing=data.Framing(**options)).batch(9)
    assert users([batch]) == list(range(len(sorts)))
    expected = (key % (1 << 24)) << 8 if options["lagrangex_header"] else 0
    assert batch.features["data_source_key"].values.tolist() == [expected] * len(sorts)


def unpack_snappy(data_bytes):
    """The bytes of raw snappy: literals, and copies of what came before."""
    at = shift = size = 0
    while True:
        byte = data_bytes[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    out = bytearray()
    while at < len(data_bytes):
        tag = data_bytes[at]
        at += 1
        if tag & 3 == 0:
            length = tag >> 2
            if length >= 60:
                width = length - 59
                length = int.from_bytes(data_bytes[at : at + width], "little")
                at += width
            out += data_bytes[at : at + length + 1]
            at += length + 1
            continue
        width = (0, 1, 2, 4)[tag & 3]
        offset = int.from_bytes(data_bytes[at : at + width], "little")
        at += width
        length = (tag >> 2) + 1
        if tag & 3 == 1:
            offset, length = offset | (tag >> 5) << 8, (tag >> 2 & 7) + 4
        for _ in range(length):
            out.append(out[-offset])
    assert len(out) == size
    return bytes(out)


def pack_snappy(data_bytes):
    """Raw snappy of one literal."""
    size, head = len(data_bytes), bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    length = (len(data_bytes) - 1).to_bytes(4, "little")
    return bytes(head) + bytes([63 << 2]) + length + data_bytes


def read_hadoop(file):
    at, out = 0, b""
    while at < len(file):
        left = int.from_bytes(file[at : at + 4], "big")
        at += 4
        while left:
            size = int.from_bytes(file[at : at + 4], "big")
            part = unpack_snappy(file[at + 4 : at + 4 + size])
            at, left, out = at + 4 + size, left - len(part), out + part
    return out


@given(st.binary(max_size=300) | st.binary(min_size=1, max_size=9).map(lambda part: part * 500))
def test_an_independent_reader_reads_our_snappy_files(text):
    assert read_hadoop(compress(text, "snappy")) == text


def test_snappy_files_of_an_independent_writer_are_read(tmp_path):
    writer = data.RecordWriter("example")
    whole = writer.frames(writer.records(table(200)))
    file = b""
    for begin in range(0, len(whole), 1000):  # blocks of two chunks each
        block = whole[begin : begin + 1000]
        chunks = [pack_snappy(part) for part in (block[:700], block[700:]) if part]
        file += len(block).to_bytes(4, "big")
        file += b"".join(len(chunk).to_bytes(4, "big") + chunk for chunk in chunks)
    (tmp_path / "f.snappy").write_bytes(file)
    source = data.examples(tmp_path / "f.snappy", columns=data.Columns(["user"]))
    assert users(source.batch(64)) == list(range(200))


def test_zlib_reads_our_zlib_files(tmp_path):
    writer = data.RecordWriter("example")
    writer.write(table(50), tmp_path / "f.zlib")
    expected = writer.frames(writer.records(table(50)))
    assert zlib.decompress((tmp_path / "f.zlib").read_bytes()) == expected


ROWS = table(300)


def read_parquet(path):
    return pq.read_table(path)


def read_arrow(path):
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


@pytest.mark.parametrize(("name", "read"), [("parquet", read_parquet), ("arrow", read_arrow)])
def test_pyarrow_reads_our_files(tmp_path, name, read):
    write_rows(tmp_path / "f", name, ROWS.schema, iter(ROWS.to_batches(max_chunksize=70)))
    assert read(tmp_path / "f").equals(ROWS)


def write_arrow(path):
    with pa.ipc.new_file(str(path), ROWS.schema) as file:
        file.write_table(ROWS, max_chunksize=70)


@pytest.mark.parametrize(
    ("read", "write"),
    [
        (data.parquet, lambda path: pq.write_table(ROWS, path, row_group_size=70)),
        (data.arrow, write_arrow),
    ],
)
def test_files_of_pyarrow_are_read(tmp_path, read, write):
    write(tmp_path / "f")
    batches = list(read(tmp_path / "f", label="label").batch(64))
    features = [row for batch in batches for row in batch.features["items"].to_lists()]
    prices = [price for batch in batches for price in batch.dense["price"].tolist()]
    assert users(batches) == ROWS["user"].to_pylist()
    assert features == ROWS["items"].to_pylist()
    assert prices == ROWS["price"].to_pylist()
