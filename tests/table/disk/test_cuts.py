"""Saves and cuts: a save holds one moment, its own or that of a cut it is given."""

import threading

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.table import MinCount
from monolith.table.disk import load_table, load_tables, save_tables
from monolith.table.snapshot import Snapshot
from tests.suites.table_base import exported, keys, random_keys
from tests.table.disk.cases import assert_same_table, filled, listing, make, plain, saved


def test_saves_beside_writers_hold_rows_of_one_moment(tmp_path):
    table, is_done = make(plain(4)), threading.Event()
    numbers = random_keys(5000)

    def write():
        for i in range(1, 10_000):
            table.assign(numbers, torch.full((5000, 4), float(i)))
            if is_done.is_set():
                return

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(3):
        save_tables(table, tmp_path)
        weights = exported(load_table(tmp_path)).columns.get("weight/0", torch.ones(1, 4))
        assert (weights == weights[0, 0]).all()
    is_done.set()
    thread.join()


def test_a_save_of_a_cut_holds_its_moment_and_leaves_it_open(tmp_path):
    tables = [filled(100, plain(2, name=name)) for name in "ab"]
    before = [load_table(saved(tmp_path, table)) for table in tables]
    with tables[0].cut() as snapshot:
        tables[0].assign(keys(1), torch.ones(1, 2))
        for _ in range(2):
            save_tables([snapshot, tables[1]], tmp_path)
        rows = next(snapshot.export())
    loaded = load_tables(tmp_path)
    assert len(rows) == len(before[0])
    for name, expected in zip("ab", before, strict=True):
        assert_same_table(loaded[name], expected)


def test_a_closed_cut_is_not_saved(tmp_path):
    snapshot = filled(3).cut()
    snapshot.close()
    with pytest.raises(FailedPreconditionError, match="expected an open cut, got a closed one"):
        save_tables(snapshot, tmp_path)
    assert listing(tmp_path) == {}


def test_a_cut_and_its_table_are_not_saved_together(tmp_path):
    table = filled(3)
    text = r"expected tables of different names, got \['user', 'user'\]"
    with table.cut() as snapshot, pytest.raises(ValueError, match=text):
        save_tables([table, snapshot], tmp_path)


def test_a_save_gives_up_the_cut_of_a_table_with_its_last_file(tmp_path):
    a, b = (filled(100, plain(name=name)) for name in "ab")

    def clear(progress):
        if progress.num_rows > len(b):
            a.clear()

    save_tables([a, b], tmp_path, progress=clear, num_threads=1)
    assert len(a) == 0
    assert len(load_table(tmp_path, name="a")) == len(b)


def test_a_save_takes_candidates_in_short_pieces(tmp_path, monkeypatch):
    table, sizes = make(plain(1, admission=MinCount(9))), []
    table.assign(random_keys(100_000), torch.ones(100_000, 1))
    export = Snapshot.export_candidates

    def counted(snapshot, partitions=None):
        columns = export(snapshot, partitions)
        sizes.append(len(columns["key"]))
        return columns

    monkeypatch.setattr(Snapshot, "export_candidates", counted)
    save_tables(table, tmp_path)
    assert sum(sizes) == 100_000
    assert max(sizes) < 40_000
