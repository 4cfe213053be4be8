import functools
import json

import fsspec
import pytest

from tests.checkpoint.reference_dump.dump_writer import (
    entry,
    message,
    tfrecord,
    write,
    write_multi,
    write_single,
)
from tests.cli.run import run

NOON = 1_767_268_800  # 2026-01-01 12:00:00 UTC


@pytest.fixture
def inspect(capsys, monkeypatch):
    return functools.partial(run, capsys, monkeypatch, "inspect")


@pytest.fixture
def model(tmp_path):
    """A model directory with tables, a filter and an incomplete dump."""
    folder = tmp_path / "model.ckpt-700.assets"
    adagrad = ("adagrad", {"norm": [1, 1]})
    users = [entry(7 << 48 | i, [1, 1], adagrad, time=NOON + i) for i in range(3)]
    write_multi(folder, 0, {"item": [entry(8, [1], ("sgd", {}))], "user": users})
    write(folder, "hash_filter_0", tfrecord([message("HashFilterSplitMetaDump", num_elements=5)]))
    write_single(folder, "old", [entry(1, [1])], [])
    (folder / "MonolithHashTable_old-00001-of-00002").unlink()
    return tmp_path


def test_tables_filters_and_missing_files_are_shown(inspect, model):
    ran = inspect(model)
    assert ran.status == 0
    words = ("MonolithMultiHashTable_0", "5 used cells", "2026-01-01 12:00:02 UTC", "adagrad")
    assert [word for word in words if word not in ran.out] == []
    assert "missing: MonolithHashTable_old-00001-of-00002" in ran.out
    assert "2 tables, 4 rows at " in ran.err
    assert "not read, because files are missing: MonolithHashTable_old; next: " in ran.err


def test_dumps_are_printed_as_json(inspect, model):
    lines = list(map(json.loads, inspect(model, "--json").out.splitlines()))
    files = {line["dump"]: line for line in lines[:3]}
    assert files["hash_filter_0"]["num_cells"] == 5
    assert files["MonolithHashTable_old"]["problem"].startswith("expected 2 shards, got 1")
    assert files["MonolithMultiHashTable_0"]["problem"] is None
    user = lines[-1]
    assert (user["name"], user["num_rows"], user["newest_time"]) == ("user", 3, NOON + 2)
    assert user["segments"] == [{"optimizer": "adagrad", "dim": 2}]
    assert (user["slots"], user["num_slots"]) == ({"7": 3}, 1)


def test_one_table_of_dumps_is_shown(inspect, model):
    ran = inspect(model / "model.ckpt-700", "--table", "item", "--json")
    assert [json.loads(line)["name"] for line in ran.out.splitlines()] == ["item"]
    ran = inspect(model, "--table", "usr")
    assert (ran.status, "expected a table of the dumps at " in ran.err) == (1, True)


def test_options_of_saved_tables_are_refused_for_dumps(inspect, model):
    ran = inspect(model, "--verify")
    assert ran.status == 2
    assert "expected --verify with tables of this package, got dumps at " in ran.err


def test_a_damaged_dump_is_named_with_its_offset(inspect, tmp_path):
    write(tmp_path, "MonolithHashTable_user", b"x" * 20)
    ran = inspect(tmp_path)
    assert ran.status == 1
    assert "MonolithHashTable_user-00000-of-00001, record at byte 0)" in ran.err


def test_dumps_in_a_store_are_shown(inspect):
    fsspec.filesystem("memory").pipe_file(
        "memory://dumps/model.ckpt-7.assets/MonolithHashTable_user-00000-of-00001",
        tfrecord([entry(1, [1], ("sgd", {}))]),
    )
    assert "1 table, 1 rows at memory://dumps/model.ckpt-7.assets" in inspect("memory://dumps").err
