"""Damaged, truncated, foreign and newer files are refused by name before anything changes."""

import json
import shutil

import pyarrow as pa
import pytest
import torch

from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.table.disk import load_table, load_tables, restore_tables, save_tables
from monolith.table.disk import table_manifest as manifest_module
from tests.suites.table_base import assert_equal_rows, exported
from tests.table.disk.cases import (
    CONFIG,
    data_files,
    filled,
    make,
    manifest_of,
    plain,
    replace_file,
    saved,
    write_manifest,
)


@pytest.fixture
def save(tmp_path):
    return saved(tmp_path)


def refused(path, error, text):
    """A load raises with the text, and so does a restore, which leaves its table alone."""
    with pytest.raises(error) as caught:
        load_tables(path)
    assert text in str(caught.value)
    assert str(caught.value).startswith("[load_tables] expected ")
    table = filled(300)
    before, calls = exported(table), table.num_update_calls
    with pytest.raises(error) as caught:
        restore_tables(table, path)
    assert text in str(caught.value)
    assert_equal_rows(exported(table), before)
    assert (table.num_update_calls, table.stats()["num_erased"]) == (calls, 0)


def changed(save, change):
    """The manifest after a change of its content, with a checksum that fits."""
    content = manifest_of(save)
    change(content)
    write_manifest(save, content)


def changed_schema(save, kind="rows", **options):
    """Replace the file of a kind by one that `options` makes of its table."""
    ((path, _),) = data_files(save, kind)
    table = pa.ipc.open_file(path).read_all()
    schema = options.pop("schema", lambda schema: schema)(table.schema)
    table = options.pop("change", lambda table: table)(table)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table.cast(schema))
    replace_file(save, 0, sink.getvalue().to_pybytes(), kind)
    return path


def test_no_save(tmp_path):
    refused(tmp_path, NotFoundError, f"expected a file, got none at {tmp_path}/manifest.json")
    refused(tmp_path / "x", NotFoundError, f"{tmp_path}/x/manifest.json")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", NotFoundError, f"{tmp_path}/file/manifest.json")


@pytest.mark.parametrize("kind", ["rows", "candidates"])
def test_vanished_file(save, kind):
    ((path, _),) = data_files(save, kind)
    path.unlink()
    refused(save, NotFoundError, f"expected a file, got none at {path}")


@pytest.mark.parametrize("kind", ["rows", "candidates"])
@pytest.mark.parametrize("at", [0, 100, -1])
def test_one_damaged_byte(save, kind, at):
    ((path, entry),) = data_files(save, kind)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    refused(save, DataLossError, f"expected checksum {entry['crc32c']}, got ")
    refused(save, DataLossError, f"({path}); it is damaged or foreign")


@pytest.mark.parametrize("change", [-1, 1, -1000])
def test_file_of_another_length(save, change):
    ((path, entry),) = data_files(save)
    size = entry["num_bytes"]
    path.write_bytes((path.read_bytes() + b"x")[: size + change])
    refused(save, DataLossError, f"expected {size} bytes, got {size + change} ({path})")


def test_manifest_that_is_cut(save):
    path = save / "manifest.json"
    path.write_bytes(path.read_bytes()[:-40])
    refused(save, DataLossError, "expected JSON, got Expecting ',' delimiter: line")
    refused(save, DataLossError, f"({path})")


def test_manifest_with_another_number(save):
    path = save / "manifest.json"
    path.write_text(path.read_text().replace('"num_update_calls": 3', '"num_update_calls": 4'))
    refused(save, DataLossError, "expected checksum '")
    refused(save, DataLossError, f"({path}); it is damaged")


@pytest.mark.parametrize("content", [[], 7, {}, {"format": "other"}, "monolith-tables"])
def test_foreign_manifest(save, content):
    (save / "manifest.json").write_text(json.dumps(content))
    refused(save, InvalidArgumentError, "expected a file of format 'monolith-tables', got ")


def test_newer_version_is_refused_by_its_number(save):
    changed(save, lambda content: content.update(version=2))
    text = "expected version 1 or the one before, got 2"
    refused(save, InvalidArgumentError, text)
    refused(save, InvalidArgumentError, "; a newer monolith-torch wrote it")


def test_the_version_before_is_read_and_the_one_before_that_is_not(save, monkeypatch):
    monkeypatch.setattr(manifest_module, "VERSION", 2)
    assert len(load_table(save)) == len(filled())
    monkeypatch.setattr(manifest_module, "VERSION", 3)
    text = "expected version 3 or the one before, got 1"
    with pytest.raises(InvalidArgumentError, match=text):
        load_table(save)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.update(tables=7), "expected field 'tables' as list, got 7"),
        (lambda c: c.update(version="1"), "expected field 'version' as int, got '1'"),
        (lambda c: c["tables"][0].update(name=None), "expected field 'name' as str, got None"),
        (lambda c: c["tables"][0].update(seed=1), "expected the name and seed of table 'user'"),
        (lambda c: c["tables"][0]["config"].update(name="x"), "expected the name and seed of"),
        (lambda c: c["tables"][0].update(num_rows=1), "expected 1 rows of table 'user', got"),
        (
            lambda c: c["tables"][0].update(latest_time=1 << 32),
            "expected a time in [0, 4294967295]",
        ),
        (lambda c: c["tables"][0].update(num_update_calls=-1), "'num_update_calls' as int, got -1"),
        (lambda c: c["tables"][0].update(num_expired=True), "'num_expired' as int, got True"),
        (lambda c: c["tables"][0].update(partitions=[[0, 4096]]), "last partition below 4096, got"),
        (lambda c: c["tables"][0].update(partitions=[0]), "last partition below 4096, got 0"),
        (lambda c: c["tables"][0]["files"].pop(0), "expected files of the partitions 0-4095"),
        (
            lambda c: c["tables"][0]["files"][0].update(kind="x"),
            "'candidates' or 'tombstones', got 'x'",
        ),
        (
            lambda c: c["tables"][0]["files"][0].update(path="../x"),
            "file of the save, got '../x'",
        ),
        (lambda c: c["tables"][0]["files"][0].update(num_rows=1 << 63), "field 'num_rows' as int"),
    ],
)
def test_manifest_with_a_wrong_field(save, change, text):
    changed(save, change)
    refused(save, DataLossError, text)
    refused(save, DataLossError, f"({save}/manifest.json)")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda config: config.update(segments=[]), "expected at least one segment"),
        (lambda config: config.update(kind="x"), "expected kind 'training' or 'serving', got 'x'"),
        (lambda config: config.update({"class": "x"}), "got 'x'"),
        (lambda config: config.update(surprise=1), "unexpected keyword argument 'surprise'"),
        (lambda config: config.update({"class": "Zeros"}), "expected a table config, got"),
        (lambda config: config["expiry"].update(slots={"x": 1}), "invalid literal for int()"),
    ],
)
def test_config_that_no_table_can_have(save, change, text):
    changed(save, lambda content: change(content["tables"][0]["config"]))
    with pytest.raises(DataLossError) as caught:
        load_table(save)
    assert str(caught.value).startswith("[load_tables] expected a table config, got ")
    assert text in str(caught.value)


def test_config_that_is_no_table_config(save):
    config = {"class": "Expiry", "days": 3, "slots": {}}

    def change(content):
        content["tables"][0].update(config={**config, "name": "user", "seed": 1}, seed=1)

    changed(save, change)
    with pytest.raises(DataLossError, match="expected a table config, got"):
        load_table(save)


def test_file_that_is_no_arrow_file(save):
    replace_file(save, 0, b"something else")
    refused(save, DataLossError, "expected an Arrow file of the table, got: ")


def test_arrow_file_that_is_cut_but_has_a_checksum(save):
    ((path, _),) = data_files(save)
    replace_file(save, 0, path.read_bytes()[:-100])
    refused(save, DataLossError, f"({path})")


def test_file_of_another_table(save, tmp_path):
    other = saved(tmp_path / "other", filled(50, plain(7)))
    ((path, _),) = data_files(other)
    replace_file(save, 0, path.read_bytes())
    refused(save, DataLossError, "expected columns key: int64, time: int64, weight/0: ")


def test_file_with_other_rows_than_its_entry_says(save):
    changed_schema(save, change=lambda table: table.slice(1))
    refused(save, DataLossError, f"expected {len(filled())} rows, got {len(filled()) - 1}")


def test_file_of_another_version(save):
    changed_schema(save, schema=lambda s: s.with_metadata({"monolith.format_version": "2"}))
    refused(save, DataLossError, "expected format version 1 or the one before, got 2")
    changed_schema(save, schema=lambda s: s.remove_metadata())
    refused(save, DataLossError, "expected format version 1 or the one before, got 0")


def test_compressed_file(save):
    path = changed_schema(save, compression="zstd")
    refused(save, DataLossError, f"column 'key' has nulls or is compressed ({path})")


@pytest.mark.parametrize("time", [-1, 1 << 32])
def test_times_that_no_row_can_have(save, time):
    def change(table):
        times = pa.array([time] * len(table), pa.int64())
        return table.set_column(1, table.schema.field(1), times)

    path = changed_schema(save, change=change)
    refused(save, DataLossError, f"expected times in [0, 4294967295], got [{time}, {time}]")
    refused(save, DataLossError, f"({path})")


def test_counts_that_no_candidate_can_have(save):
    def change(table):
        counts = pa.array([0] * len(table), pa.int64())
        return table.set_column(1, table.schema.field(1), counts)

    path = changed_schema(save, "candidates", change=change)
    refused(save, DataLossError, "expected count in [1, 4294967295], got [0, 0]")
    refused(save, DataLossError, f"({path})")


def test_a_manifest_that_claims_more_than_there_is_allocates_nothing(save):
    changed(save, lambda c: c["tables"][0]["files"][0].update(num_bytes=1 << 62))
    refused(save, DataLossError, f"expected {1 << 62} bytes, got ")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"format": "other"}, "expected a file of format 'monolith-tables', got 'other'"),
        (
            {"format": "monolith-tables", "version": 2},
            "expected version 1 or the one before, got 2",
        ),
    ],
)
def test_a_save_does_not_replace_what_another_program_wrote(tmp_path, content, text):
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(InvalidArgumentError) as caught:
        save_tables(filled(), tmp_path)
    assert str(caught.value).startswith(f"[save_tables] {text}")
    assert str(caught.value).endswith("; choose another folder")
    assert json.loads((tmp_path / "manifest.json").read_text()) == content


def test_a_save_replaces_a_damaged_one(save):
    (save / "manifest.json").write_text("{")
    save_tables(filled(77), save)
    assert len(load_table(save)) == len(filled(77))


def test_files_of_another_save_of_the_same_table_are_refused(tmp_path):
    a, b = saved(tmp_path / "a", filled(50)), saved(tmp_path / "b", filled(60))
    ((target, entry),), ((source, _),) = data_files(a), data_files(b)
    shutil.copy(source, target)
    refused(a, DataLossError, f"expected {entry['num_bytes']} bytes, got ")


def test_a_file_that_is_lost_after_the_check_leaves_the_tables_empty(save, monkeypatch):
    table = make(CONFIG)
    clear, ((path, _),) = table.clear, data_files(save)

    def clear_and_lose():
        clear()
        path.unlink(missing_ok=True)

    monkeypatch.setattr(table, "clear", clear_and_lose)
    with pytest.raises(NotFoundError) as caught:
        restore_tables(table, save)
    assert str(caught.value).endswith(f"got none at {path}")
    assert caught.value.__notes__ == ["loading had begun, so the tables ['user'] are empty now"]
    assert len(table) == 0


def test_files_that_hold_a_key_twice(save):
    num_rows = len(load_table(save))
    changed_schema(save, change=lambda table: table.take([0, 0, *range(2, num_rows)]))
    text = f"expected {num_rows} different keys, got {num_rows - 1} "
    with pytest.raises(DataLossError) as caught:
        load_table(save)
    assert str(caught.value).startswith(f"[load_tables] {text}(table 'user' in {save})")


def test_torch_tensors_of_a_load_do_not_share_memory(save):
    first, second = load_table(save), load_table(save)
    first.assign(exported(first).keys, torch.zeros(len(first), 8))
    assert exported(second).columns["weight/0"].abs().sum() > 0
