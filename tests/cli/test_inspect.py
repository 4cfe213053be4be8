import functools
import json

import pytest
import torch

from monolith.table import Budget, Expiry, FixedR8, MinCount, Segment, Table, TableConfig
from monolith.table.disk import save_tables
from monolith.table.optimizers import Adagrad
from tests.cli.run import run

USER = TableConfig(
    "user",
    [Segment(2, Adagrad(0.5), name="vector"), Segment(1, view=FixedR8(1.0))],
    admission=MinCount(0, slots={7: 2}),
    expiry=Expiry(30),
    budget=Budget(1 << 30),
)
NOON = 1_767_268_800  # 2026-01-01 12:00:00 UTC


@pytest.fixture
def inspect(capsys, monkeypatch):
    return functools.partial(run, capsys, monkeypatch, "inspect")


@pytest.fixture
def save(tmp_path):
    """Ten users of slot 1, and an item."""
    users, items = Table(USER), Table(TableConfig("item", Segment(20)))
    users.assign(torch.arange(10) | (1 << 48), torch.ones(10, 3), now=NOON)
    items.assign(torch.tensor([-5]), torch.full((1, 20), 0.25), now=7)
    save_tables([users, items], tmp_path / "saved")
    return tmp_path / "saved"


def test_tables_are_shown_with_rows_ages_and_config(inspect, save):
    ran = inspect(save)
    assert ran.status == 0
    words = ("user", "10", "2026-01-01 12:00:00 UTC", "vector", "Adagrad(learning_rate=0.5, ")
    words += ("MinCount(threshold=0, slots={'7': 2}", "Expiry(days=30)", "Budget(", "100.0%")
    words += ("fp32, FixedR8(fixed_range=1.0)",)
    assert [word for word in words if word not in ran.out] == []
    assert ran.err.startswith("2 tables, 11 rows, ")
    assert "next: --verify, --key K" in ran.err


def test_json_has_a_line_for_each_table(inspect, save):
    user, item = map(json.loads, inspect(save, "--json").out.splitlines())
    assert (user["num_rows"], user["slots"], user["num_slots"]) == (10, {str(1): 10}, 1)
    assert (item["name"], item["oldest_time"], item["slots"]) == ("item", 7, {})


def test_one_table_is_shown_by_its_name(inspect, save):
    ran = inspect(save, "--table", "item")
    assert "user" not in ran.out
    assert ran.err.startswith("1 table, 1 rows, ")


def test_a_row_is_shown_by_its_key(inspect, save):
    (row,) = map(json.loads, inspect(save, "--key", (1 << 48) | 3, "--json").out.splitlines())
    assert (row["table"], row["time"]) == ("user", NOON)
    assert row["columns"]["weight/vector"] == [1.0, 1.0]
    assert len(row["columns"]["state/vector/norm"]) == 2


def test_a_long_row_is_cut_in_a_table(inspect, save):
    ran = inspect(save, "--key", -5)
    assert "item[-5]" in ran.out
    assert ran.out.count("0.25") == 16
    assert "..." in ran.out


@pytest.mark.parametrize(
    ("options", "where"), [((), "any table"), (("--table", "item"), "table 'item'")]
)
def test_a_key_without_a_row_is_a_failure(inspect, save, options, where):
    ran = inspect(save, "--key", 99, *options)
    assert ran.status == 1
    assert f"error: [inspect] expected key 99 in {where} of '{save}', got no row" in ran.err


def test_verify_says_that_all_is_well(inspect, save):
    ran = inspect(save, "--verify")
    assert [ran.status, "every byte is as it was written" in ran.err] == [0, True]


def test_verify_names_a_damaged_file(inspect, save):
    file = next(save.glob("data-*/0-user.rows*"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    ran = inspect(save, "--verify")
    assert ran.status == 1
    assert "error: [inspect] expected checksum" in ran.err
    assert f"{file}" in ran.err


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("nothing", "nothing at"),
        ("saved/manifest.json", "a file at"),
        ("empty", "a folder with nothing at"),
        ("other", "a folder with 0, 1, 2, 3, 4, ... at"),
        (".", "the saves saved below it at"),
    ],
)
def test_what_is_no_save_is_refused_with_what_was_found(inspect, save, name, got):
    (save.parent / "empty").mkdir()
    for i in range(6):
        (save.parent / "other" / str(i)).mkdir(parents=True)
    path = save.parent / name
    ran = inspect(path)
    assert ran.status == 1
    assert f"or a folder of save_tables, with manifest.json, got {got} '{path}'" in ran.err


def test_a_path_of_another_file_system_is_told_when_it_is_read(inspect):
    ran = inspect("memory://nothing")
    assert ran.status == 1
    assert "expected a file, got none at memory://nothing/manifest.json" in ran.err


def test_a_local_path_may_have_a_scheme(inspect, save):
    assert inspect(f"file://{save}").status == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--key", "5", "--verify"), "--diff and --verify, got --key and --verify"),
        (("--key", str(1 << 64)), f"expected --key of 64 bits, got {1 << 64}"),
        (("--key", "x"), "valid int"),
    ],
)
def test_wrong_options_are_wrong_usage(inspect, save, options, text):
    ran = inspect(save, *options)
    assert [ran.status, text in ran.err] == [2, True]
