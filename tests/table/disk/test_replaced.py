"""A save that is completed while a load reads the one before."""

import functools
import os

import pytest

from monolith.errors import NotFoundError
from monolith.table.disk import folder as folder_module
from monolith.table.disk import load_table, load_tables, restore_tables, save_tables
from monolith.table.disk import table_load as load_module
from tests.table.disk.cases import assert_same_table, filled, make, plain

STORE = "memory://replaced"
OTHER = filled(9, plain(name="other"))


class Saves:
    """Completes saves of `new` while a load reads: at its first reads, so many times."""

    def __init__(self, path, monkeypatch, num_saves=1):
        self.new = filled(50, plain(2))
        self._path, self._left = path, num_saves
        for name in ("_read_local", "_read_all"):
            read = functools.partial(self._read, getattr(folder_module, name))
            monkeypatch.setattr(folder_module, name, read)

    def _read(self, read, *arguments):
        if self._left:
            self._left -= 1
            save_tables([self.new, OTHER], self._path)
        return read(*arguments)


@pytest.fixture
def old():
    return filled(100, plain(2))


def num_folders(path):
    return len([name for name in os.listdir(path) if name.startswith("data-")])


def test_a_load_from_a_disk_gets_what_it_began_with(tmp_path, old, monkeypatch):
    save_tables(old, tmp_path)
    saves = Saves(tmp_path, monkeypatch)
    assert_same_table(load_table(tmp_path), old)
    assert num_folders(tmp_path) == 2
    assert_same_table(load_table(tmp_path, name="user"), saves.new)
    save_tables(old, tmp_path)
    assert num_folders(tmp_path) == 1


def test_a_restore_reads_one_save_twice(tmp_path, old, monkeypatch):
    save_tables(old, tmp_path)
    Saves(tmp_path, monkeypatch)
    table = make(plain(2))
    restore_tables(table, tmp_path)
    assert_same_table(table, old)


@pytest.mark.parametrize("place", ["store", "disk"])
def test_where_there_are_no_locks_a_load_takes_the_new_save(tmp_path, old, monkeypatch, place):
    path = STORE if place == "store" else tmp_path
    monkeypatch.setattr(folder_module, "_try_lock", lambda number, kind: True)
    save_tables([old, OTHER], path)
    saves = Saves(path, monkeypatch)
    table = make(plain(2))
    restore_tables(table, path, num_threads=1)
    assert_same_table(table, saves.new)


def test_a_load_gives_up_when_saves_come_too_often(old, monkeypatch):
    monkeypatch.setattr(load_module, "_MAX_PLANS", 3)
    save_tables([old, OTHER], STORE)
    Saves(STORE, monkeypatch, num_saves=100)
    with pytest.raises(NotFoundError, match=r"expected a file, got none at memory://replaced/data"):
        load_tables(STORE, num_threads=1)
