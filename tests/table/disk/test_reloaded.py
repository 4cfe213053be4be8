"""The shared suite on tables that come from a save, with the rows that they had."""

import threading

import pytest

from monolith.table import Table
from monolith.table.disk import restore_tables, save_tables
from tests.suites.table import TableSuite
from tests.suites.table_base import floats, keys

pytestmark = pytest.mark.thorough

PATH = "memory://reloaded"
READS = ("contains", "export", "export_candidates", "len", "lookup", "lookup_entry")
GAUGES = ("num_rows", "num_candidates")


class ReloadedTable(Table):
    """Is saved and restored into a new core at its first read after a write.

    What no save keeps stands in the way: cuts, cursors, records, running calls, expired rows, and
    the uses of rows under a budget. Such a table is used as it is.
    """

    def __init__(self, config, **options):
        super().__init__(config, **options)
        self.num_reloads = 0
        self._may_reload = not (config.budget or config.expiry or options.get("record"))
        self._threads = set(threading.enumerate())  # of other tests, or of fsspec
        self._history = {}

    def _open(self, verb):
        if verb in READS and self._may_reload and self._core is not None:
            self._reload(self._core)
        return super()._open(verb)

    def _reload(self, core):
        is_used = core.num_cuts or core.cursors() or set(threading.enumerate()) - self._threads
        before = super()._stats()
        if is_used or not any(before[name] for name in GAUGES):
            return
        self._may_reload = False
        save_tables(self, PATH, num_threads=1)
        with Table(self.config, clock=self._clock, changes_bytes=self._changes_bytes) as other:
            restore_tables(other, PATH, num_threads=1)
            assert other.latest_time == self.latest_time
            self._core = other._core
        after = super()._stats()
        self._history = {name: before[name] - after[name] for name in after if name not in GAUGES}
        self.num_reloads += 1

    def _stats(self):
        return {name: n + self._history.get(name, 0) for name, n in super()._stats().items()}


class TestReloaded(TableSuite):
    make = staticmethod(ReloadedTable)

    def test_a_table_with_rows_comes_from_a_save(self):
        table = self.table(2)
        table.assign(keys(7), floats([1, 2]))
        assert table.lookup(keys(7)).tolist() == [[1, 2]]
        assert (table.num_reloads, table.stats()["num_inserted"]) == (1, 1)
