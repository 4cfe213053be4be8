import functools
import itertools
import json

import pytest
import torch

from monolith.checkpoint import Contents, WriteOptions, write
from monolith.table import MinCount, Segment, SlidingFilter, Table, TableConfig, Zeros
from monolith.table.optimizers import SGD
from tests.checkpoint.chains import saved_chain
from tests.cli.run import run

NOON = 1_767_268_800  # 2026-01-01 12:00:00 UTC
ROWS = dict.fromkeys(("num_added", "num_removed", "num_changed", "num_same"), 0)


@pytest.fixture
def inspect(capsys, monkeypatch):
    return functools.partial(run, capsys, monkeypatch, "inspect")


def save(prefix, table, step, **dense):
    write(
        Contents(tables=table, dense=dense, trainer={}, step=step),
        prefix,
        WriteOptions(clock=lambda: float(NOON)),
    )


@pytest.fixture
def prefixes(tmp_path):
    """Two checkpoints: between them a row is gone, one is new and one has changed."""
    one, two = str(tmp_path / "model.ckpt-1"), str(tmp_path / "model.ckpt-2")
    with Table(TableConfig("user", Segment(2, SGD(1.0), Zeros())), clock=lambda: NOON) as table:
        table.assign(torch.arange(4) | (7 << 48), torch.ones(4, 2))
        weight = torch.tensor([1.0, 2.0])
        save(one, table, 1, weight=weight, bias=torch.zeros(1), old=torch.ones(1))
        table.erase(torch.tensor([7 << 48]))
        table.assign(torch.tensor([1, 9]) | (7 << 48), torch.zeros(2, 2))
        save(two, table, 2, weight=weight - 0.5, bias=torch.zeros(1), new=torch.ones(2))
    return one, two


def test_a_checkpoint_is_shown_with_tables_and_dense_tensors(inspect, prefixes):
    ran = inspect(prefixes[0])
    assert ran.status == 0
    words = ("model.ckpt-1", "2026-01-01 12:00:00 UTC", "weight", "float32", "user", "100.0%")
    assert [word for word in words if word not in ran.out] == []
    assert "1 table, 4 rows, " in ran.err
    assert f"at {prefixes[0]} (step 1)" in ran.err


def test_of_a_folder_the_newest_checkpoint_is_shown(inspect, prefixes, tmp_path):
    head, table = map(json.loads, inspect(tmp_path, "--json").out.splitlines())
    assert (head["checkpoint"], head["step"], head["saved"]) == (prefixes[1], 2, NOON)
    assert head["tensors"]["new"] == {"dtype": "float32", "shape": [2]}
    assert (table["name"], table["num_rows"]) == ("user", 4)


@pytest.mark.parametrize(("step", "needed"), [(1, "1 checkpoint"), (2, "2 checkpoints")])
def test_a_link_says_which_checkpoints_a_restore_needs(inspect, tmp_path, step, needed):
    saved_chain(tmp_path, num_links=2)
    link = tmp_path / f"model.ckpt-{step}"
    words = f"changed since model.ckpt-{step - 1}; a restore needs {needed} more, from model.ckpt-0"
    assert words in " ".join(inspect(link).err.split())
    head, *_ = map(json.loads, inspect(link, "--json").out.splitlines())
    assert head["chain"] == [f"model.ckpt-{i}" for i in range(step)]


def test_many_dense_tensors_are_cut_in_a_table(inspect, tmp_path):
    dense = {f"w{i:02}": torch.ones(1) for i in range(25)}
    write(Contents(dense=dense), tmp_path / "c")
    ran = inspect(tmp_path / "c")
    assert "w19" in ran.out
    assert "w20" not in ran.out
    assert "5 more" in ran.out


def test_a_row_of_a_checkpoint_is_shown_by_its_key(inspect, prefixes):
    (row,) = map(json.loads, inspect(prefixes[0], "--key", 7 << 48, "--json").out.splitlines())
    assert (row["table"], row["time"]) == ("user", NOON)


def test_one_table_is_shown_by_its_name(inspect, prefixes):
    ran = inspect(prefixes[0], "--table", "user", "--json")
    assert [json.loads(line)["name"] for line in ran.out.splitlines()] == ["user"]


def test_every_byte_is_checked(inspect, prefixes, tmp_path):
    assert "every byte is as it was written" in inspect(prefixes[0], "--verify").err
    path = tmp_path / "model.ckpt-1.dense-00000-of-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    ran = inspect(prefixes[0], "--verify")
    assert ran.status == 1
    assert "it is damaged or foreign" in ran.err


def test_a_checkpoint_in_memory_is_shown(inspect):
    write(Contents(dense={"w": torch.ones(1)}, step=3), "memory://inspected/c-3")
    assert json.loads(inspect("memory://inspected", "--json").out.splitlines()[0])["step"] == 3


def test_what_differs_between_two_checkpoints_is_shown(inspect, prefixes):
    one, two = prefixes
    lines = list(map(json.loads, inspect(one, "--diff", two, "--json").out.splitlines()))
    counts = {"num_added": 1, "num_removed": 1, "num_changed": 1, "num_same": 2}
    assert lines[0] == {"name": "user", **counts, **candidates(0, 0, 0, 0, 0)}
    assert {line["tensor"]: line["difference"] for line in lines[1:]} == {
        "new": f"only in {two}",
        "old": f"only in {one}",
        "weight": 0.5,
    }


def test_a_difference_is_shown_to_readers(inspect, prefixes):
    ran = inspect(prefixes[0], "--diff", prefixes[1])
    assert "largest difference" in ran.out
    assert "3 rows, 0 candidates and 3 dense tensors differ; from " in ran.err


def counted(path, rule, *batches):
    """A checkpoint of a table that saw these keys, a second apart, and its rule let none in."""
    config, times = TableConfig("user", Segment(1), admission=rule), itertools.count(NOON)
    with Table(config, clock=lambda: next(times)) as table:
        for batch in batches:
            table.apply_gradients(torch.tensor(batch), torch.ones(len(batch), 1))
        save(path, table, 1)
    return path


def candidates(*numbers):
    """The fields of a difference: before, after, added, removed, changed."""
    kinds = ("", "other_", "added_", "removed_", "changed_")
    return {f"num_{kind}candidates": number for kind, number in zip(kinds, numbers, strict=True)}


def test_candidates_are_compared_by_key(inspect, tmp_path):
    one = counted(tmp_path / "one", MinCount(9), [1, 2, 3, 4])
    two = counted(tmp_path / "two", MinCount(9), [3, 4, 5], [4])
    (table,) = map(json.loads, inspect(one, "--diff", two, "--json").out.splitlines())
    assert table == {"name": "user", **ROWS, **candidates(4, 3, 1, 2, 1)}


def test_cells_of_filters_are_compared(inspect, tmp_path):
    rule = SlidingFilter(9, capacity=1 << 20)
    one = counted(tmp_path / "one", rule, [1, 2])
    two = counted(tmp_path / "two", rule, [2, 3, 4], [2])
    (table,) = map(json.loads, inspect(one, "--diff", two, "--json").out.splitlines())
    assert table == {"name": "user", **ROWS, **candidates(2, 3, 2, 1, 1)}


def test_candidates_of_two_rules_have_nothing_in_common(inspect, tmp_path):
    one = counted(tmp_path / "one", MinCount(9), [1, 2])
    two = counted(tmp_path / "two", SlidingFilter(9, capacity=1 << 20), [1, 2, 3])
    (table,) = map(json.loads, inspect(one, "--diff", two, "--json").out.splitlines())
    assert table == {"name": "user", **ROWS, **candidates(2, 3, 3, 2, 0)}


def test_candidates_are_shown_to_readers(inspect, prefixes, tmp_path):
    ran = inspect(prefixes[0], "--diff", counted(tmp_path / "one", MinCount(9), [1, 2]))
    assert "candidates of" in ran.out
    assert "4 rows, 2 candidates and " in ran.err
    assert "candidates of" not in inspect(*prefixes[:1], "--diff", prefixes[1]).out


def test_of_one_table_no_dense_tensors_are_compared(inspect, prefixes):
    ran = inspect(prefixes[0], "--diff", prefixes[1], "--table", "user", "--json")
    assert len(ran.out.splitlines()) == 1


def test_another_shape_and_other_columns_differ(inspect, prefixes, tmp_path):
    with Table(TableConfig("user", Segment(3, SGD(1.0), Zeros())), clock=lambda: NOON) as table:
        table.assign(torch.arange(4) | (7 << 48), torch.ones(4, 3))
        save(tmp_path / "wide", table, 3, weight=torch.ones(3))
    out = inspect(prefixes[0], "--diff", tmp_path / "wide", "--json").out
    table, *dense = map(json.loads, out.splitlines())
    assert (table["num_changed"], table["num_same"]) == (4, 0)
    assert "another dtype or shape" in [line["difference"] for line in dense]


def test_a_table_that_one_has_not_is_all_new(inspect, prefixes, tmp_path):
    write(Contents(dense={"w": torch.ones(1)}), tmp_path / "empty")
    out = inspect(tmp_path / "empty", "--diff", prefixes[0], "--json").out
    assert json.loads(out.splitlines()[0])["num_added"] == 4


def test_a_difference_to_nothing_is_refused(inspect, prefixes, tmp_path):
    ran = inspect(prefixes[0], "--diff", tmp_path / "none")
    assert ran.status == 1
    assert f"[inspect] expected a checkpoint, got none at '{tmp_path}/none'" in ran.err
