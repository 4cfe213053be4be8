"""Frames of records, keys of data sources, compression, and what is wrong with files."""

import itertools
import struct
import zlib

import pyarrow as pa
import pytest

from monolith import data
from monolith.data.files.byte_stream import compress
from monolith.data.records.framing import data_source_key, java_hash_code
from monolith.errors import DataLossError, FailedPreconditionError
from monolith.util.tfrecord import tfrecord_frame
from tests.data.records.record_bytes import example, fids, put_bytes

OPTIONS = ("lagrangex_header", "kafka_dump_prefix", "has_sort_id", "kafka_dump")
ALL = [
    dict(zip(OPTIONS, flags, strict=True)) for flags in itertools.product([False, True], repeat=4)
]


def record(*ids):
    return example({"a": put_bytes(2, fids(*ids))})


def write(path, data_bytes):
    path.write_bytes(data_bytes)
    return path


def ids_in(path, read=data.examples, **options):
    pipeline = read(path, columns=data.Columns(["a"]), **options).batch(100)
    return [row for batch in pipeline for row in batch.features["a"].to_lists()]


@pytest.mark.parametrize("options", ALL)
def test_every_framing_round_trips_records_of_every_length(tmp_path, options):
    framing = data.Framing(**options)
    records = [b"\x98\x06\x01" * (size // 3) + b"" for size in range(16)] + [record(7), record(8)]
    path = write(tmp_path / "f", b"".join(map(framing.frame, records)))
    assert ids_in(path, framing=framing) == [[]] * 16 + [[7], [8]]


def test_the_header_of_each_option_has_its_size():
    sizes = {each: len(data.Framing(**{each: True}).frame(b"")) - 8 for each in OPTIONS}
    assert sizes == {
        "lagrangex_header": 8,
        "kafka_dump_prefix": 16,
        "has_sort_id": 8,
        "kafka_dump": 8,
    }


def test_a_prefix_that_is_not_zero_is_the_size_of_the_sort_id(tmp_path):
    frame = struct.pack("<Q", 3) + b"xyz" + struct.pack("<Q", len(record(7))) + record(7)
    framing = data.Framing(kafka_dump_prefix=True, has_sort_id=True)
    assert ids_in(write(tmp_path / "f", frame), framing=framing) == [[7]]


def test_hashes_and_keys_are_those_of_the_reference():
    assert java_hash_code("datasource_inst") == -1487072768
    assert java_hash_code("pc") == 3571
    names = ("pc", "mobile", "cloud")
    assert [data_source_key(name) for name in names] == [914176, 1250992640, 2782803200]


def test_the_key_of_a_lagrangex_header_is_a_column(tmp_path):
    framing = data.Framing(lagrangex_header=True)
    frame = framing.frame(record(7), record_type=3, source_key=data_source_key("cloud"))
    columns = data.Columns(["data_source_key"])
    (batch,) = data.examples(write(tmp_path / "f", frame), columns=columns, framing=framing).batch(
        1
    )
    assert batch.features["data_source_key"].to_lists() == [[2782803200]]


def test_records_of_another_type_are_refused_or_skipped(tmp_path):
    framing = data.Framing(lagrangex_header=True)
    frames = framing.frame(record(7), record_type=1) + framing.frame(record(8), record_type=3)
    path = write(tmp_path / "f", frames)
    with pytest.raises(DataLossError, match="expected records of type 3, got type 1"):
        ids_in(path, framing=framing)
    assert ids_in(path, framing=framing, on_error="skip") == [[8]]


def test_overwritten_memory_is_named(tmp_path):
    path = write(tmp_path / "f", data.Framing().frame(record(7)) + struct.pack("<Q", 0xFEFEFEFE))
    batches = iter(data.examples(path, columns=data.Columns(["a"])).batch(1))
    assert next(batches).features["a"].to_lists() == [[7]]
    at = len(record(7)) + 8
    with pytest.raises(DataLossError, match=f"f', byte {at}: DEADBEEF value found"):
        next(batches)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_length_beyond_the_limit_hints_at_the_framing(tmp_path, on_error):
    path = write(tmp_path / "f", data.Framing(kafka_dump=True).frame(record(7)) + b"\xff" * 8)
    with pytest.raises(
        DataLossError, match=r"at most 134217728 bytes, got \d+; check the framing: "
    ):
        ids_in(path, on_error=on_error)


def test_a_sort_id_beyond_the_limit_is_refused(tmp_path):
    path = write(tmp_path / "f", b"\xff" * 8)
    with pytest.raises(DataLossError, match="expected a length of at most"):
        ids_in(path, framing=data.Framing(has_sort_id=True))


@pytest.mark.parametrize("cut", [1, 8, 9, 15])
def test_a_truncated_file_names_file_and_byte(tmp_path, cut):
    frame = data.Framing().frame(record(7))
    path = write(tmp_path / "f", frame + frame[:-cut])
    text = f"f', byte {len(frame)}: truncated record: expected at least"
    with pytest.raises(DataLossError, match=text):
        ids_in(path)


def test_a_record_larger_than_a_block_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.records.decoder._BLOCK", 64)
    rows = [[7], list(range(1000)), [8], []]
    frames = b"".join(data.Framing().frame(record(*row)) for row in rows)
    assert ids_in(write(tmp_path / "f", frames)) == rows


def test_more_bytes_than_the_limit_of_a_record_are_refused(tmp_path):
    path = write(tmp_path / "f", data.Framing().frame(record(*range(20))))
    with pytest.raises(DataLossError, match="expected a length of at most 100 bytes"):
        ids_in(path, max_record_bytes=100)
    with pytest.raises(ValueError, match="max_record_bytes of at most 2147483647"):
        ids_in(path, max_record_bytes=1 << 31)


TF = put_bytes(1, put_bytes(1, put_bytes(1, b"a") + put_bytes(2, put_bytes(3, b"\x08\x07"))))


def test_tfrecord_frames_have_masked_checksums():
    # CRC-32C of "123456789" is 0xe3069283; it is stored rotated by 15 bits, plus a constant.
    masked = ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % (1 << 32)
    frame = tfrecord_frame(b"123456789")
    assert frame[:8] == struct.pack("<Q", 9)
    assert frame[12:] == b"123456789" + struct.pack("<I", masked)


def test_a_wrong_checksum_is_an_error_or_a_skipped_record(tmp_path):
    frame = tfrecord_frame(TF)
    broken = frame[:20] + bytes([frame[20] ^ 1]) + frame[21:]
    path = write(tmp_path / "f", frame + broken + frame)
    with pytest.raises(
        DataLossError,
        match=r"record 1 of the block at byte 0, byte \d+: frame: "
        "expected the checksum of the record's bytes",
    ):
        ids_in(path, data.tfrecords)
    batches = iter(data.tfrecords(path, columns=data.Columns(["a"]), on_error="skip").batch(9))
    assert next(batches).features["a"].to_lists() == [[7], [7]]
    assert batches.num_skipped == {"frame: expected the checksum of the record's bytes": 1}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_wrong_checksum_of_a_length_ends_the_file(tmp_path, on_error):
    path = write(tmp_path / "f", b"\x01" + tfrecord_frame(TF)[1:])
    with pytest.raises(DataLossError, match="expected the checksum of the record's length"):
        ids_in(path, data.tfrecords, on_error=on_error)


def test_checksums_may_be_ignored(tmp_path):
    frame = tfrecord_frame(TF)
    path = write(tmp_path / "f", frame[:-4] + bytes(4))
    assert ids_in(path, data.tfrecords, check_crc=False) == [[7]]
    path.write_bytes(b"\xff" * 32)
    with pytest.raises(DataLossError, match="expected a length of at most"):
        ids_in(path, data.tfrecords, check_crc=False)


COMPRESSIONS = {"gzip": ".gz", "zlib": ".zlib", "zstd": ".zst", "snappy": ".snappy"}


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressed_files_are_read_by_option_and_by_name(tmp_path, name):
    frames = b"".join(data.Framing().frame(record(i)) for i in range(1000))
    packed = compress(frames, name)
    assert len(packed) < len(frames)
    expected = [[i] for i in range(1000)]
    assert ids_in(write(tmp_path / "plain", packed), compression=name) == expected
    assert ids_in(write(tmp_path / f"f{COMPRESSIONS[name]}", packed)) == expected


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_cut_compressed_file_is_an_error(tmp_path, name):
    frames = b"".join(data.Framing().frame(record(i)) for i in range(1000))
    path = write(tmp_path / "f", compress(frames, name)[:-9])
    with pytest.raises(DataLossError, match="f'"):
        ids_in(path, compression=name)


def test_gzip_files_of_several_members_are_read(tmp_path):
    frames = [compress(data.Framing().frame(record(i)), "gzip") for i in (1, 2)]
    assert ids_in(write(tmp_path / "f.gz", b"".join(frames))) == [[1], [2]]


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (struct.pack(">I", 1 << 30), "expected a block of at most 268435456 bytes, got 1073741824"),
        (struct.pack(">II", 100, 3) + b"\xff\xff\x7f", "expected 1 to 100 bytes of a block"),
        (struct.pack(">II", 100, 6) + b"\xff" * 6, "expected 1 to 100 bytes of a block"),
        (struct.pack(">II", 100, 2) + b"\x05\xff", "cannot be uncompressed"),
        (struct.pack(">I", 100), "ends inside its compressed bytes"),
        (struct.pack(">II", 100, 5) + b"\x05", "ends inside its compressed bytes"),
    ],
)
def test_damaged_snappy_is_refused(tmp_path, packed, text):
    with pytest.raises(DataLossError, match=text):
        ids_in(write(tmp_path / "f.snappy", packed))


def test_damaged_gzip_is_refused(tmp_path):
    with pytest.raises(DataLossError, match="cannot be uncompressed"):
        ids_in(write(tmp_path / "f.gz", b"no gzip"))
    with pytest.raises(DataLossError, match="ends inside its compressed bytes"):
        ids_in(write(tmp_path / "f.gz", zlib.compress(b"abc")[:-1]))


def test_an_empty_compressed_file_has_no_samples(tmp_path):
    assert ids_in(write(tmp_path / "f.gz", b"")) == []


def test_an_unknown_compression_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected compression 'auto' or one of"):
        ids_in(write(tmp_path / "f", b""), compression="rar")


@pytest.mark.parametrize("name", ["none", *COMPRESSIONS])
@pytest.mark.parametrize("interleave", [1, 2])
def test_a_pipeline_goes_on_where_it_stopped(tmp_path, monkeypatch, name, interleave):
    monkeypatch.setattr("monolith.data.records.decoder._BLOCK", 600)
    for number in range(3):
        ids = range(100 * number, 100 * number + 90)
        frames = b"".join(data.Framing().frame(record(*[i] * (i % 3))) for i in ids)
        write(tmp_path / f"f{number}", compress(frames, name))
    source = data.examples(tmp_path, columns=data.Columns(["a"]), compression=name)
    source = source.interleave(interleave).batch(7)
    whole = [batch.features["a"].to_lists() for batch in source]
    batches = iter(source)
    for number in range(len(whole)):
        rest = [batch.features["a"].to_lists() for batch in source.resume(batches.state_dict())]
        assert rest == whole[number:]
        next(batches)


def test_a_pipeline_goes_on_inside_a_batch_of_examples(tmp_path):
    table = pa.table({"a": range(100)})
    data.RecordWriter("example_batch", batch_size=40).write(table, tmp_path / "f")
    source = data.example_batches(tmp_path / "f", columns=data.Columns(["a"])).batch(30)
    batches = iter(source)
    next(batches)
    (second, *_) = source.resume(batches.state_dict())
    assert second.features["a"].to_lists() == [[i] for i in range(30, 60)]


def test_a_file_that_shrank_is_refused(tmp_path):
    frames = b"".join(data.Framing().frame(record(i)) for i in range(99))
    path = write(tmp_path / "f.gz", compress(frames, "gzip"))
    source = data.examples(path, columns=data.Columns(["a"])).batch(9)
    batches = iter(source)
    next(batches)
    state = batches.state_dict()
    state["state"]["source"]["open"] = [[0, 10**6]]
    with pytest.raises(DataLossError, match="is shorter than it was"):
        source.resume(state)


def test_bad_records_are_skipped_and_counted(tmp_path):
    frames = [record(1), b"\x0a\xff", record(2), b"\x0a\x05a", b"\x08\x01"]
    path = write(tmp_path / "f", b"".join(map(data.Framing().frame, frames)))
    batches = iter(data.examples(path, columns=data.Columns(["a"]), on_error="skip").batch(9))
    assert next(batches).features["a"].to_lists() == [[1], [2]]
    assert batches.num_skipped == {
        "Example.named_feature: expected a whole number": 1,
        "Example.named_feature: expected a length within the message": 1,
        "Example.named_feature: expected the field's wire type": 1,
    }


def test_bad_rows_of_a_batch_are_skipped_and_the_others_kept(tmp_path):
    table = pa.table({"a": [1, 2, 3], "d": [0.5, None, 1.5], "line_id.req_time": [7, 8, None]})
    data.RecordWriter("example_batch").write(table, tmp_path / "f")
    columns = data.Columns(["a"], ["d"], time="line_id.req_time")
    batches = iter(data.example_batches(tmp_path / "f", columns=columns, on_error="skip").batch(9))
    batch = next(batches)
    assert (batch.features["a"].to_lists(), batch.dense["d"].tolist()) == ([[1]], [0.5])
    assert batch.time.tolist() == [7]
    assert sum(batches.num_skipped.values()) == 2


def test_on_error_and_columns_are_checked(tmp_path):
    path = write(tmp_path / "f", b"")
    with pytest.raises(ValueError, match='expected on_error "raise" or "skip", got \'x\''):
        ids_in(path, on_error="x")
    with pytest.raises(ValueError, match="expected columns or label, got both"):
        data.examples(path, columns=data.Columns(["a"]), label="b")
    with pytest.raises(ValueError, match="expected records of kind"):
        data.RecordFormat("json")


def test_a_file_of_records_that_grows_while_it_is_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.records.decoder._BLOCK", 64)
    path, columns = tmp_path / "x", data.Columns(["user"])
    data.RecordWriter("example").write(pa.table({"user": list(range(50))}), path)
    batches = iter(data.examples(path, columns=columns).batch(1))
    next(batches)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(FailedPreconditionError, match=r"x' of \d+ bytes, .*; do not change files"):
        list(batches)
