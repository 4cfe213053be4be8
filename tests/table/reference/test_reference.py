import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import Phase

from monolith.errors import FailedPreconditionError
from monolith.table import Constant, Segment, TableConfig
from monolith.table.reference import ReferenceTable
from monolith.table.reference.steps import Call, optimizer_step
from monolith.table.reference.touched import ReferenceCut
from tests.suites.table import RefusalSuite, TableSuite
from tests.suites.table_base import TableCase, column, keys
from tests.suites.table_cut_machine import CUT_CONFIGS, CutMachine
from tests.suites.table_machine import CONFIGS, check_random_verbs

pytestmark = pytest.mark.thorough


class TestReference(TableSuite):
    make = staticmethod(ReferenceTable)


def test_no_section_of_the_suite_hides_a_test_of_another():
    classes = {*TableSuite.__mro__, *RefusalSuite.__mro__}
    sections = [section for section in classes if issubclass(section, TableCase)]
    names = Counter(name for section in sections for name in vars(section) if name[:2] != "__")
    assert [name for name, count in names.items() if count > 1] == []


def test_machine_accepts_the_reference_itself():
    check_random_verbs(ReferenceTable, CONFIGS["two-segments"], max_examples=5)


def test_machine_finds_a_table_that_erases_too_little():
    class Sparing(ReferenceTable):
        def _erase(self, keys):
            existed = super()._contains(keys)
            super()._erase(keys[:1])
            return existed

    with pytest.raises(AssertionError):
        check_random_verbs(Sparing, CONFIGS["sgd"], phases=[Phase.generate])


def test_machine_finds_a_table_that_sums_from_zero():
    class FromZero(ReferenceTable):
        def _assign_add(self, keys, values, now, threads):
            super()._assign_add(keys, values + 0.0, now, threads)

    config = TableConfig("user", Segment(4, initializer=Constant(-0.0)))
    with pytest.raises(AssertionError, match="values differ"):
        check_random_verbs(FromZero, config, max_examples=500, phases=[Phase.generate])


def test_machine_finds_a_cut_that_reads_rows_of_now():
    class Late(ReferenceTable):
        def _open_cut(self, cursor):
            cut = super()._open_cut(cursor)
            cut.lookup_entry = lambda keys, memory: self._lookup_entry(keys)
            return cut

    with pytest.raises(AssertionError):
        check_random_verbs(
            Late, CUT_CONFIGS["two-segments"], 500, phases=[Phase.generate], machine=CutMachine
        )


def test_machine_finds_a_cut_that_does_not_leave_its_cursor_behind():
    class Forgiving(ReferenceTable):
        def _open_cut(self, cursor):
            cut = super()._open_cut(cursor)
            cut.close = lambda is_read: ReferenceCut.close(cut, True)
            return cut

    with pytest.raises(AssertionError):
        check_random_verbs(
            Forgiving, CUT_CONFIGS["two-segments"], 500, phases=[Phase.generate], machine=CutMachine
        )


def test_unknown_optimizer_is_refused():
    zeros = np.zeros((1, 1), np.float32)
    with pytest.raises(TypeError, match=r"\[optimizer_step\] expected an optimizer spec, got 'x'"):
        optimizer_step("x", zeros, {}, Call(zeros, np.float32(1), 0))


def test_rows_do_not_share_memory_with_results():
    table = ReferenceTable(TableConfig("user", Segment(1)))
    table.assign(keys(1), column(1))
    for result in (table.lookup(keys(1)), *table.lookup_entry(keys(1)).rows.columns.values()):
        result.fill_(9)
    assert table.lookup(keys(1)).tolist() == [[1]]


@pytest.mark.parametrize("verb", ["lookup", "apply_gradients", "erase", "len", "stats", "export"])
def test_call_that_meets_the_close_is_refused(verb):
    table = ReferenceTable(TableConfig("user", Segment(1)))
    calls = {
        "lookup": lambda: table.lookup(keys(1)),
        "apply_gradients": lambda: table.apply_gradients(keys(1), column(1)),
        "erase": lambda: table.erase(keys(1)),
        "len": lambda: len(table),
        "stats": table.stats,
        "export": lambda: next(table.export()),
    }
    lock, check_open, num_checks = table._lock, table._check_open, []

    def close_after_the_first_check(verb):
        check_open(verb)
        num_checks.append(lock.locked())
        if num_checks == [False]:
            table._is_closed = True

    table._check_open = close_after_the_first_check
    with pytest.raises(FailedPreconditionError, match=rf"\[Table\.{verb}\] expected an open table"):
        calls[verb]()


def test_a_cut_that_is_collected_inside_a_call_waits_for_nothing():
    table = ReferenceTable(TableConfig("user", Segment(1)))
    snapshots = [table.cut()]
    with table._lock:
        thread = threading.Thread(target=snapshots.clear, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    table.clear()
