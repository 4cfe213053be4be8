import functools
import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith import data
from monolith.data.files.tabular import write_rows
from tests.cli.run import run
from tests.data.records.test_record_round_trips import TABLE as ROUND_TRIP
from tests.data.samples import num_bytes_read, table, users, write_parquet


@pytest.fixture
def monolith(capsys, monkeypatch):
    return functools.partial(run, capsys, monkeypatch)


def test_head_prints_the_first_samples(monolith, tmp_path):
    write_parquet(tmp_path)
    ran = monolith("data", "head", tmp_path, "-n", 2, "--json")
    assert ran.status == 0
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert rows == table(2).to_pylist()


def test_head_goes_on_with_the_next_file(monolith, tmp_path):
    write_parquet(tmp_path, num_files=3, num_samples=2)
    ran = monolith("data", "head", tmp_path, "-n", 5, "--json")
    assert [json.loads(line)["user"] for line in ran.out.splitlines()] == [0, 1, 2, 3, 4]


def test_head_prints_a_table_and_says_what_it_read(monolith, tmp_path):
    write_parquet(tmp_path)
    ran = monolith("data", "head", tmp_path)
    assert all(word in ran.out for word in ("user", "items", "price", "label", "[2, 3]"))
    assert "first 5 samples of 4 parquet files" in ran.err


def wide(folder, num_columns=300, num_rows=20_000):
    values = pa.array(range(num_rows))
    path = folder / "wide.parquet"
    columns = {f"c{i}": values for i in range(num_columns)}
    pq.write_table(pa.table(columns), path, use_dictionary=False, compression="none")
    return path


def test_head_prints_the_columns_that_are_named(monolith, tmp_path):
    write_parquet(tmp_path)
    arguments = ("data", "head", tmp_path, "-n", 1, "--columns", "label, user", "--json")
    assert monolith(*arguments).out == '{"label": 0.0, "user": 0}\n'


def test_head_of_many_columns_prints_the_first_ones(monolith, tmp_path):
    ran = monolith("data", "head", wide(tmp_path, num_rows=9))
    assert [f" {name} " in ran.out for name in ("c0", "c23", "c24")] == [True, True, False]
    assert "24 of 300 columns; others: --columns NAMES, or --json\n" in ran.err


def test_head_reads_little_more_than_it_prints(monolith, tmp_path):
    path = wide(tmp_path, num_columns=8, num_rows=1_000_000)
    before = num_bytes_read()
    assert monolith("data", "head", path, "-n", 2, "--columns", "c3").status == 0
    assert num_bytes_read() - before < 10 * 2**20 < path.stat().st_size / 6


def test_stats_and_convert_read_the_columns_that_are_named(monolith, tmp_path):
    write_parquet(tmp_path)
    ran = monolith("data", "stats", tmp_path, "--columns", "price", "--json")
    assert [json.loads(line)["name"] for line in ran.out.splitlines()] == ["price"]
    arguments = (tmp_path / "*.parquet", tmp_path / "b.csv", "--columns", "label,user")
    assert monolith("data", "convert", *arguments).status == 0
    assert (tmp_path / "b.csv").read_text().startswith('"label","user"\n0.0,0\n')


def test_a_column_that_the_files_lack_is_refused(monolith, tmp_path):
    write_parquet(tmp_path)
    ran = monolith("data", "head", tmp_path, "--columns", "usr")
    assert ran.status == 1
    assert "error: [data] expected a column 'usr', got ['user', " in ran.err
    assert "did you mean 'user'?" in ran.err


def test_long_cells_are_cut(monolith, tmp_path):
    pq.write_table(pa.table({"x": ["y" * 100]}), tmp_path / "a.parquet")
    assert "y" * 37 + "..." in monolith("data", "head", tmp_path).out


def test_stats_counts_ids_and_ranges(monolith, tmp_path):
    write_parquet(tmp_path, num_files=2, num_samples=50)
    ran = monolith("data", "stats", tmp_path, "--json", "--top", 1)
    columns = {each["name"]: each for each in map(json.loads, ran.out.splitlines())}
    assert columns["user"]["distinct"] == 100
    assert columns["items"]["values"] == sum(i % 3 for i in range(100))
    assert columns["items"]["max_length"] == 2
    assert columns["price"]["min"] == 0
    assert columns["price"]["max"] == 99 / 4
    assert columns["label"]["mean"] == 0.5


def test_stats_names_frequent_values_and_missing_ones(monolith, tmp_path):
    pq.write_table(pa.table({"city": ["oslo", "rome", "oslo", None]}), tmp_path / "a.parquet")
    ran = monolith("data", "stats", tmp_path)
    assert "oslo (2), rome (1)" in ran.out
    (line,) = [line for line in ran.out.splitlines() if "oslo" in line]
    assert line.split()[2] == "1"
    assert "4 samples in 1 parquet file (" in ran.err


def test_stats_writes_large_counts_with_commas(monolith, tmp_path):
    pq.write_table(pa.table({"city": ["oslo"] * 1200 + [None] * 1100}), tmp_path / "a.parquet")
    (line,) = [
        line for line in monolith("data", "stats", tmp_path).out.splitlines() if "oslo" in line
    ]
    assert line.split()[2:4] == ["1,100", "1,200"]


def test_stats_of_more_values_than_are_counted_is_a_lower_bound(monolith, tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.summary._MAX_DISTINCT", 10)
    write_parquet(tmp_path, num_files=1, num_samples=50)
    assert ">= 10" in monolith("data", "stats", tmp_path).out


def test_stats_counts_values_of_dictionaries(monolith, tmp_path):
    cities = pa.array(["oslo", "oslo"]).dictionary_encode()
    rows = pa.table({"city": cities})
    with pa.ipc.new_file(tmp_path / "a.arrow", rows.schema) as sink:
        sink.write_table(rows)
    assert "oslo (2)" in monolith("data", "stats", tmp_path / "a.arrow").out


RECORDS = ["example", "example_batch", "instance", "tf_example"]


@pytest.mark.parametrize("kind", RECORDS)
def test_records_are_converted_and_come_back(monolith, tmp_path, kind):
    pq.write_table(table(50), tmp_path / "a.parquet")
    arguments = ("data", "convert", tmp_path / "a.parquet", tmp_path / "b", "--to", kind)
    assert monolith(*arguments).status == 0
    back = tmp_path / "c.parquet"
    assert monolith("data", "convert", tmp_path / "b", back, "--format", kind).status == 0
    assert pq.read_table(back).select(table(1).schema.names).to_pylist() == table(50).to_pylist()


@pytest.mark.parametrize("name", ["b.csv.gz", "b.jsonl.bz2", "b.tfrecord.gz", "b.csv.zst"])
def test_the_name_of_the_target_says_how_it_is_compressed(monolith, tmp_path, name):
    pq.write_table(table(9), tmp_path / "a.parquet")
    monolith("data", "convert", tmp_path / "a.parquet", tmp_path / name)
    with pytest.raises(UnicodeDecodeError):
        (tmp_path / name).read_bytes().decode()
    ran = monolith("data", "head", tmp_path / name, "-n", 9, "--json")
    assert [json.loads(line)["user"] for line in ran.out.splitlines()] == list(range(9))


@pytest.mark.parametrize("name", ["b.parquet.gz", "b.arrow.zst", "b.tfrecord.bz2"])
def test_a_compression_that_a_format_has_not_is_refused(monolith, tmp_path, name):
    pq.write_table(table(9), tmp_path / "a.parquet")
    ran = monolith("data", "convert", tmp_path / "a.parquet", tmp_path / name)
    assert ran.status == 1
    assert "such files are not compressed by" in ran.err


READERS = {
    "parquet": data.parquet,
    "arrow": data.arrow,
    "jsonl": data.jsonl,
    "csv": data.csv,
}


@pytest.mark.parametrize("kind", READERS)
def test_convert_keeps_every_sample(monolith, tmp_path, kind):
    (tmp_path / "in").mkdir()
    write_parquet(tmp_path / "in")
    target = tmp_path / f"all.{kind}"
    ran = monolith("data", "convert", tmp_path / "in", target)
    assert ran.status == 0
    assert f"wrote 200 samples to {target}" in ran.err
    source = READERS[kind](target).batch(64)
    assert users(source) == list(range(200))
    items = [row for batch in source for row in batch.features["items"].to_lists()]
    assert items == table(200)["items"].to_pylist()


def test_convert_to_csv_and_back_gives_the_same_rows(monolith, tmp_path):
    pq.write_table(ROUND_TRIP, tmp_path / "a.parquet")
    assert monolith("data", "convert", tmp_path / "a.parquet", tmp_path / "b.csv").status == 0
    assert monolith("data", "convert", tmp_path / "b.csv", tmp_path / "c.parquet").status == 0
    assert pq.read_table(tmp_path / "c.parquet").to_pylist() == ROUND_TRIP.to_pylist()


def test_convert_back_gives_the_same_table(monolith, tmp_path):
    pq.write_table(table(20), tmp_path / "a.parquet")
    monolith("data", "convert", tmp_path / "a.parquet", tmp_path / "b.arrow")
    monolith("data", "convert", tmp_path / "b.arrow", tmp_path / "c.parquet")
    assert pq.read_table(tmp_path / "c.parquet") == table(20)


def test_convert_does_not_replace_a_file_unless_asked(monolith, tmp_path):
    pq.write_table(table(2), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("mine")
    ran = monolith("data", "convert", tmp_path / "a.parquet", tmp_path / "b.csv")
    assert ran.status == 1
    assert "exists; give --overwrite" in ran.err
    assert (tmp_path / "b.csv").read_text() == "mine"
    arguments = ("data", "convert", tmp_path / "a.parquet", tmp_path / "b.csv", "--overwrite")
    assert monolith(*arguments).status == 0


def test_a_conversion_that_fails_leaves_nothing(monolith, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"user": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"user": \n')
    ran = monolith(
        "data", "convert", tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "out.parquet"
    )
    assert ran.status == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_convert_of_one_path_is_wrong_usage(monolith):
    ran = monolith("data", "convert", "only")
    assert ran.status == 2
    assert "expected what to read and the file to write" in ran.err


def test_an_unknown_format_to_write_is_wrong_usage(monolith):
    ran = monolith("data", "convert", "a.parquet", "b.csv", "--to", "xml")
    assert ran.status == 2
    assert "expected --to of arrow, csv, example, " in ran.err


def test_writing_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected a format, one of \['arrow'.*got 'xml'"):
        write_rows(tmp_path / "x", "xml", pa.schema([]), iter([]))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("data", "head", "nothing.parquet"), "error: [data] expected at least one file at"),
        (("data", "convert", "a.parquet", "b.xyz"), "error: [data] expected a file name that ends"),
        (("data", "head", __file__, "--format", "xml"), "expected a format, one of ['arrow',"),
    ],
)
def test_mistakes_are_one_line_without_a_traceback(monolith, arguments, text):
    ran = monolith(*arguments)
    assert ran.status == 1
    assert text in ran.err
    assert "Traceback" not in ran.err


def test_a_tsv_file_is_csv_with_tabs(monolith, tmp_path):
    (tmp_path / "a.tsv").write_text("user\tprice\n1\t2.5\n")
    ran = monolith("data", "head", tmp_path / "a.tsv", "--json")
    assert json.loads(ran.out) == {"user": 1, "price": 2.5}


@pytest.mark.parametrize("end", ["csv.gz", "jsonl.zst", "tsv", "tsv.gz"])
def test_a_written_file_is_what_its_name_says(monolith, tmp_path, end):
    rows = pa.table({"user": [1, 2], "city": ["a\tb", "c,d"]})
    pq.write_table(rows, tmp_path / "a.parquet")
    assert monolith("data", "convert", tmp_path / "a.parquet", tmp_path / f"b.{end}").status == 0
    ran = monolith("data", "head", tmp_path / f"b.{end}", "--json")
    assert [json.loads(line) for line in ran.out.splitlines()] == rows.to_pylist()
    start = (tmp_path / f"b.{end}").read_bytes()[:6]
    assert start in (b'"user"',) or start[:2] in (b"\x1f\x8b", b"\x28\xb5")


def test_convert_writes_local_files_only(monolith):
    ran = monolith("data", "convert", "a.csv", "s3://bucket/b.csv")
    assert [ran.status, "expected a local file to write, got 's3://" in ran.err] == [2, True]


def test_convert_casts_the_types_of_later_files(monolith, tmp_path):
    pq.write_table(pa.table({"user": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"user": pa.array([2], pa.int32())}), tmp_path / "b.parquet")
    target = tmp_path / "c.arrow"
    assert monolith("data", "convert", tmp_path / "*.parquet", target).status == 0
    assert users(data.arrow(target).batch(2)) == [1, 2]


def test_a_later_file_that_does_not_fit_is_named(monolith, tmp_path):
    pq.write_table(pa.table({"user": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"user": ["x"]}), tmp_path / "b.parquet")
    ran = monolith("data", "convert", tmp_path, tmp_path / "c.arrow")
    assert [ran.status, "b.parquet' cannot be read" in ran.err] == [1, True]


def test_nan_is_null_in_json(monolith, tmp_path):
    rows = pa.table({"x": [1.0, float("nan")], "y": [[float("inf")], [2.0]]})
    pq.write_table(rows, tmp_path / "a.parquet")
    monolith("data", "convert", tmp_path / "a.parquet", tmp_path / "b.jsonl")
    text = '{"x": 1.0, "y": [null]}\n{"x": null, "y": [2.0]}\n'
    assert (tmp_path / "b.jsonl").read_text() == text
    assert monolith("data", "head", tmp_path / "a.parquet", "--json").out == text


def test_bytes_that_are_no_text_are_refused_in_json(monolith, tmp_path):
    pq.write_table(pa.table({"x": [b"\xff"]}), tmp_path / "a.parquet")
    ran = monolith("data", "convert", tmp_path / "a.parquet", tmp_path / "b.jsonl")
    assert "expected bytes that are UTF-8, for JSON, got b'\\xff'" in ran.err


def test_stats_leaves_nan_out_of_the_range_and_the_mean(monolith, tmp_path):
    nan = float("nan")
    pq.write_table(pa.table({"x": [1.0, nan, 3.0], "y": [nan] * 3}), tmp_path / "a.parquet")
    ran = monolith("data", "stats", tmp_path, "--json")
    x, y = map(json.loads, ran.out.splitlines())
    assert [x["min"], x["max"], x["mean"]] == [1.0, 3.0, 2.0]
    assert [y["values"], y["min"], y["mean"]] == [3, None, None]


def test_stats_counts_nested_columns_without_their_values(monolith, tmp_path):
    rows = pa.table({"pair": [{"a": 1}, None], "lists": [[[1], [2]], []]})
    pq.write_table(rows, tmp_path / "a.parquet")
    ran = monolith("data", "stats", tmp_path, "--json")
    pair, lists = map(json.loads, ran.out.splitlines())
    assert [pair["values"], lists["values"], lists["max_length"]] == [1, 2, 2]


def test_cells_are_printed_as_they_are(monolith, tmp_path):
    pq.write_table(pa.table({"[b]": ["[/x] :smile:"]}), tmp_path / "a.parquet")
    out = monolith("data", "head", tmp_path / "a.parquet").out
    assert all(text in out for text in ("[b]", "[/x] :smile:"))


@pytest.mark.dist
@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_reader_that_leaves_is_no_error_to_print(tmp_path, option):
    write_parquet(tmp_path, num_files=1, num_samples=3_000)
    command = [sys.executable, "-m", "monolith.cli.main", "data", "head", str(tmp_path)]
    with subprocess.Popen(
        [*command, "-n", "3000", *option], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as ran:
        ran.stdout.readline()
        ran.stdout.close()
        talk = ran.stderr.read()
    assert not any(word in talk for word in (b"Traceback", b"error", b"Broken pipe"))


def test_an_interrupted_command_ends_with_130(monolith, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("monolith.cli.data.RawFiles", interrupt)
    assert monolith("data", "head", "x").status == 130


def test_bytes_in_json_are_text(monolith, tmp_path):
    pq.write_table(pa.table({"x": [b"abc"]}), tmp_path / "a.parquet")
    monolith("data", "convert", tmp_path / "a.parquet", tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_text() == '{"x": "abc"}\n'


@pytest.mark.dist
def test_the_installed_command_runs(tmp_path):
    write_parquet(tmp_path, num_files=1)
    command = [sys.executable, "-m", "monolith.cli.main", "data", "head", str(tmp_path), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(ran.stdout.splitlines()) == 5
