"""What a restore does to tables that exist."""

import pytest
import torch

from monolith.errors import CancelledError, FailedPreconditionError
from monolith.table.disk import restore_tables, save_tables
from tests.suites.table_base import NOW, keys, random_keys
from tests.table.disk.cases import assert_same_table, filled, make, plain


def test_a_restore_replaces_what_was_there(tmp_path):
    table, other = filled(), make()
    save_tables(table, tmp_path)
    other.lookup_or_insert(random_keys(50, seed=9), now=NOW + 100)
    assert restore_tables(other, tmp_path) == []
    assert_same_table(other, table)


def test_a_restore_beside_a_cut_changes_no_table(tmp_path):
    tables = [filled(100, plain(name=name)) for name in "ab"]
    save_tables(tables, tmp_path)
    for table in tables:
        table.assign(keys(1), torch.ones(1, 1))
    text = "[restore_tables] expected no open cut, got one; close it first (table 'b')"
    with tables[1].cut(), pytest.raises(FailedPreconditionError) as caught:
        restore_tables(tables, tmp_path)
    assert str(caught.value) == text
    assert all(table.contains(keys(1)).all() for table in tables)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, CancelledError])
def test_a_restore_that_is_stopped_leaves_the_tables_empty(tmp_path, error, num_threads):
    tables = [filled(100, plain(name=name)) for name in "ab"]
    save_tables(tables, tmp_path)

    def stop(progress):
        if progress.num_rows >= 100:
            raise error("enough")

    with pytest.raises(error, match="enough") as caught:
        restore_tables(tables, tmp_path, progress=stop, num_threads=num_threads)
    assert [len(table) for table in tables] == [0, 0]
    note = "loading had begun, so the tables ['a', 'b'] are empty now"
    assert caught.value.__notes__ == [note]
    restore_tables(tables, tmp_path)
    assert len(tables[1]) > 100


def test_a_table_that_is_being_restored_is_neither_cut_nor_restored(tmp_path):
    table, texts = filled(100), []
    save_tables(table, tmp_path)

    def try_both(progress):
        for call in (table.cut, lambda: restore_tables(table, tmp_path)):
            with pytest.raises(FailedPreconditionError) as caught:
                call()
            texts.append(str(caught.value))

    restore_tables(table, tmp_path, progress=try_both, num_threads=1)
    text = "[{}] expected a table at rest, got one that restore_tables fills (table 'user')"
    assert set(texts) == {text.format("Table.cut"), text.format("restore_tables")}
    assert_same_table(table, filled(100))


def test_a_table_that_is_closed_while_it_is_restored_ends_the_restore(tmp_path):
    tables = [filled(100, plain(name=name)) for name in "ab"]
    save_tables(tables, tmp_path)
    with pytest.raises(FailedPreconditionError, match="got a closed one"):
        restore_tables(tables, tmp_path, progress=lambda done: tables[0].close())
    assert len(tables[1]) == 0
