"""With prefetch, blocks of files are decoded ahead: by the core's thread, or by Arrow's."""

import gzip
import itertools
import os
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith import data
from monolith.data.convert import BadSamples
from monolith.data.cursor import enable_read_ahead
from monolith.data.files.listing import find_files
from monolith.data.files.tabular import write_rows
from monolith.data.records.decoder import RecordFormat
from monolith.data.records.record_writer import RecordWriter
from monolith.errors import DataLossError, NotFoundError
from monolith.ops.compiled import load_native
from tests.data.samples import table, users, write_parquet

COLUMNS = data.Columns(["user", "items"], ["price"], ["label"])
READERS = {
    "parquet": data.parquet,
    "arrow": data.arrow,
    "csv": data.csv,
    "jsonl": data.jsonl,
    "example": data.examples,
    "example_batch": data.example_batches,
    "instance": data.instances,
    "tf_example": data.tfrecords,
}
ARROW = ["parquet", "arrow", "csv", "jsonl"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for module, size in (("files.parquet", 7), ("files.text_lines", 300), ("records.decoder", 500)):
        monkeypatch.setattr(f"monolith.data.{module}._BLOCK", size)
    return tmp_path


def write(folder, name, num_files=3):
    """Files of 60 samples in many blocks."""
    for i in range(num_files):
        rows = table(60, i * 60)
        write_rows(folder / f"{i}", name, rows.schema, iter(rows.to_batches(10)))
    return READERS[name](folder, columns=COLUMNS)


@pytest.mark.parametrize("name", READERS)
def test_every_format_gives_the_same_batches(folder, name):
    source = write(folder, name).interleave(2).batch(7)
    assert users(source.prefetch(2)) == users(source)
    with iter(source) as plain, iter(source.prefetch(2)) as ahead:
        for _ in range(5):
            next(plain), next(ahead)
            assert ahead.progress == plain.progress


def reader_ahead(folder, name="example"):
    write(folder, name)
    (file,) = find_files(folder / "0")
    framing = {"framing": None} if name == "tf_example" else {}
    return RecordFormat(name, **framing).open(file, 0, COLUMNS, BadSamples(), ahead=True)


def test_the_files_of_merged_streams_are_decoded_ahead(folder):
    one, other = write(folder, "parquet"), data.parquet(folder / "0", columns=COLUMNS)
    (merged,) = enable_read_ahead([one.merge(other, one).stage])
    assert [source.reads_ahead for source in merged.sources] == [True] * 3
    assert merged.sources[0] is merged.sources[2] is not merged.sources[1]


@pytest.mark.parametrize("name", ["example", "example_batch", "instance", "tf_example"])
def test_records_are_decoded_by_a_thread_of_the_core(folder, name):
    reader = reader_ahead(folder, name)
    num_read = sum(1 for _ in iter(reader.read, None))
    assert reader._ahead.num_blocks >= num_read > 3
    reader.close()


def test_records_are_decoded_one_block_ahead_at_most(folder):
    reader = reader_ahead(folder)
    for num_read in range(4):
        assert reader._ahead.num_blocks <= num_read + 1
        reader.read()
    reader.close()


def tasks():
    return set(os.listdir("/proc/self/task"))


def test_the_thread_of_the_core_ends_when_the_file_is_closed_early(folder):
    before = tasks()
    reader = reader_ahead(folder)
    (ours,) = tasks() - before
    reader.read()
    reader.close()
    gone = (ours not in tasks() for _ in range(100_000))  # the kernel may need a moment
    assert any(gone)


def test_a_reader_that_nobody_holds_ends_its_thread(folder):
    before = tasks()
    reader = reader_ahead(folder)
    (ours,) = tasks() - before
    del reader
    assert any(ours not in tasks() for _ in range(100_000))


@pytest.mark.parametrize(
    ("module", "function", "name"),
    [
        ("pyarrow.csv", "read_csv", "csv"),
        ("pyarrow.json", "read_json", "jsonl"),
        ("pyarrow.parquet.ParquetFile", "iter_batches", "parquet"),
    ],
)
def test_arrow_decodes_on_its_own_threads(folder, monkeypatch, module, function, name):
    source = write(folder, name).batch(7)
    seen = []
    owner = pq.ParquetFile if name == "parquet" else sys.modules[module]
    original = getattr(owner, function)

    def note(*arguments, **options):
        uses = options.get("use_threads") or getattr(arguments[1], "use_threads", False)
        seen.append((threading.current_thread().name, uses))
        return original(*arguments, **options)

    monkeypatch.setattr(owner, function, note)
    assert len(users(source.prefetch(2))) == 180
    assert set(seen) == {("monolith-read", True)}


def readers():
    return {each for each in threading.enumerate() if each.name == "monolith-read"}


@pytest.mark.parametrize("name", ARROW)
def test_closing_early_ends_the_threads_that_ask_arrow(folder, name):
    before = readers()
    batches = iter(write(folder, name).interleave(2).batch(7).prefetch(2))
    next(batches)
    assert readers() - before
    batches.close()
    assert not readers() - before


@pytest.mark.parametrize("name", ARROW)
def test_a_loop_that_is_left_ends_the_threads_that_ask_arrow(folder, name):
    before = readers()
    for _ in write(folder, name).batch(7).prefetch(2):
        ours = readers() - before
        break
    for each in ours:
        each.join(30)
        assert not each.is_alive()


def break_csv(folder):
    lines = [f"{i},1" for i in range(90)]
    lines[70] = "x,1"
    (folder / "f").write_text("user,label\n" + "\n".join(lines) + "\n")
    return data.csv(folder / "f", types={"user": "int64"})


def break_jsonl(folder):
    lines = [f'{{"user": {i}}}' for i in range(90)]
    lines[70] = '{"user": '
    (folder / "f").write_text("\n".join(lines) + "\n")
    return data.jsonl(folder / "f", types={"user": "int64"})


def break_record(folder):
    writer = RecordWriter("example")
    records = writer.records(table(90))
    records[70] = b"\x0a\x7f"
    writer.write_records(records, folder / "f")
    return data.examples(folder / "f", columns=COLUMNS)


def break_checksum(folder):
    write_rows(folder / "f", "tf_example", table(90).schema, iter(table(90).to_batches()))
    whole = bytearray((folder / "f").read_bytes())
    whole[len(whole) * 3 // 4 : len(whole) * 3 // 4 + 40] = bytes(40)
    (folder / "f").write_bytes(whole)
    return data.tfrecords(folder / "f", columns=COLUMNS)


def cut_off(folder):
    write_rows(folder / "f", "example_batch", table(90).schema, iter(table(90).to_batches(10)))
    (folder / "f").write_bytes((folder / "f").read_bytes()[:-5])
    return data.example_batches(folder / "f", columns=COLUMNS)


def cut_off_gzip(folder):
    rows = table(900)
    write_rows(folder / "g", "example", rows.schema, iter(rows.to_batches()))
    (folder / "f.gz").write_bytes(gzip.compress((folder / "g").read_bytes())[:-20])
    return data.examples(folder / "f.gz", columns=COLUMNS)


def until_error(source):
    batches, got = iter(source), []
    with pytest.raises(DataLossError) as caught:
        got.extend(users([batch]) for batch in batches)
    return got, str(caught.value)


@pytest.mark.parametrize(
    "make", [break_csv, break_jsonl, break_record, break_checksum, cut_off, cut_off_gzip]
)
def test_an_error_arrives_at_its_sample_with_the_same_text(folder, make):
    source = make(folder).batch(1)
    got, text = until_error(source)
    assert len(got) > 30
    assert until_error(source.prefetch(2)) == (got, text)


def test_skipped_records_are_counted_alike(folder):
    break_record(folder)
    for depth in (1, 3):
        source = data.examples(folder / "f", columns=COLUMNS, on_error="skip").batch(4)
        batches = iter(source.prefetch(depth))
        assert users(batches) == [i for i in range(90) if i != 70]
        assert sum(batches.num_skipped.values()) == 1


def test_a_file_that_is_gone_is_told_at_its_turn(tmp_path):
    source = data.parquet(write_parquet(tmp_path)).batch(50).prefetch(1)
    (tmp_path / "part-2.parquet").unlink()
    batches = iter(source)
    assert users(itertools.islice(batches, 2)) == list(range(100))
    with pytest.raises(NotFoundError, match=r"part-2.parquet"):
        next(batches)


LEAVES = """
import sys
from monolith import data
read, path = getattr(data, sys.argv[1]), sys.argv[2]
columns = data.Columns(["user", "items"], ["price"], ["label"])
batches = iter(read(path, columns=columns).repeat().batch(100).prefetch(2))
next(batches)
"""


@pytest.mark.dist
@pytest.mark.parametrize("name", ["parquet", "csv", "example_batch"])
def test_a_program_may_end_without_closing(tmp_path, name):
    rows = table(20_000)
    write_rows(tmp_path / "f", name, rows.schema, iter(rows.to_batches()))
    arguments = [sys.executable, "-c", LEAVES, READERS[name].__name__, tmp_path / "f"]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_block_is_started_once_and_waited_for_once(folder):
    reader = reader_ahead(folder)
    buffer = reader._buffer
    with pytest.raises(RuntimeError, match=r"\[DecodeAhead.start\] expected no block under way"):
        reader._ahead.start(buffer.ctypes.data, 0, buffer)
    reader.close()
    fresh = load_native().DecodeAhead(reader._decoder)
    with pytest.raises(RuntimeError, match=r"\[DecodeAhead.wait\] expected a block under way"):
        fresh.wait()


def test_empty_tables_have_nothing_ahead(folder):
    write_rows(folder / "f", "example", pa.schema([]), iter([]))
    assert list(data.examples(folder / "f", columns=COLUMNS).batch(2).prefetch(2)) == []
