"""What saves and loads hold while they run."""

import threading
import weakref

from monolith.table.disk import folder as folder_module
from monolith.table.disk import restore_tables, save_tables, table_files, workers
from monolith.table.rows import RowMemory
from tests.table.disk.cases import assert_same_table, filled, make, plain


def test_a_save_of_many_tables_holds_the_memory_of_few_batches(tmp_path, monkeypatch):
    alive, most = weakref.WeakSet(), []

    class Counted(RowMemory):
        def __init__(self):
            super().__init__()
            alive.add(self)
            most.append(len(alive))

    monkeypatch.setattr(table_files, "RowMemory", Counted)
    save_tables([filled(20, plain(name=f"t{i}")) for i in range(20)], tmp_path, num_threads=2)
    assert len(most) == 20
    assert max(most) <= 4


def test_files_of_a_table_share_the_memory_of_batches(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(table_files, "_FILE_BYTES", 1000)
    monkeypatch.setattr(table_files, "RowMemory", lambda: made.append(1) or RowMemory())
    table = filled(1000)
    save_tables(table, tmp_path, num_threads=1)
    assert len(list(tmp_path.rglob("*rows*.arrow"))) > 10
    assert len(made) == 1


def test_work_for_later_waits_where_much_waits_already():
    work, go, num_given = workers.Work(0, None), threading.Event(), []

    def give():
        for _ in range(workers._NUM_WAITERS + 1):
            work.later(lambda: go.wait(30))
            num_given.append(1)

    giver = threading.Thread(target=give)
    giver.start()
    giver.join(0.5)
    assert len(num_given) == workers._NUM_WAITERS
    go.set()
    giver.join()
    work.finish()
    work.close()
    assert len(num_given) == workers._NUM_WAITERS + 1


def test_a_restore_reads_files_for_the_check_and_then_for_the_last_time(tmp_path, monkeypatch):
    read_local, found = folder_module._read_local, []

    def read(file, memory, is_read_again):
        found.append(is_read_again)
        return read_local(file, memory, is_read_again)

    old = filled(100, plain(2))
    save_tables(old, tmp_path)
    monkeypatch.setattr(folder_module, "_read_local", read)
    table = make(plain(2))
    restore_tables(table, tmp_path, num_threads=1)
    assert found == [True, False]
    assert_same_table(table, old)
