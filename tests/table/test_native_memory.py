import re

import pytest
import torch

from monolith.table import MinCount, Rows, Segment, SlidingFilter, TableConfig
from monolith.table.native import Table
from monolith.table.optimizers import Adagrad
from tests.suites.table_base import assert_equal_rows, assert_same_bits, exported
from tests.suites.table_races import turn_over

DIM = 4
UNLIMITED = (1 << 64) - 1
OLD, NEW = torch.arange(1000), torch.arange(500, 60_000)


def new_rows():
    n = len(NEW)
    columns = {"weight/0": torch.ones(n, DIM), "state/0/norm": torch.ones(n, DIM)}
    return Rows(NEW, torch.ones(n, dtype=torch.int64), columns)


CALLS = {
    "lookup_or_insert": lambda table: table.lookup_or_insert(NEW),
    "assign": lambda table: table.assign(NEW, torch.ones(len(NEW), DIM)),
    "assign_add": lambda table: table.assign_add(NEW, torch.ones(len(NEW), DIM)),
    "apply_gradients": lambda table: table.apply_gradients(NEW, torch.ones(len(NEW), DIM)),
    "reinitialize": lambda table: table.reinitialize(NEW),
    "import_rows": lambda table: table.import_rows(new_rows()),
    "clear": lambda table: table.clear(),  # a fresh index comes before the old one goes
}
GROWING = [verb for verb in CALLS if verb != "clear"]
EXTRA_BYTES = {verb: 500_000 if verb in GROWING else 0 for verb in CALLS}


def make_table():
    """A table of 1,000 rows that differ from fresh ones."""
    table = Table(TableConfig("user", Segment(DIM, Adagrad(0.1))), clock=lambda: 100)
    table.apply_gradients(OLD, torch.ones(len(OLD), DIM))
    return table


def refusal(table, verb):
    """(bytes asked for, bytes held) as the error of a call without memory says."""
    with pytest.raises(MemoryError) as caught:
        CALLS[verb](table)
    form = (
        rf"\[Table\.{verb}\] out of memory: asked for (\d+) bytes more, table holds (\d+) "
        r"\(table 'user'\)"
    )
    return tuple(map(int, re.fullmatch(form, str(caught.value)).groups()))


def limit_memory(table, extra_bytes):
    """Allow the table so much more than it holds. Returns the limit."""
    table._core.set_memory_limit(0)
    limit = refusal(table, "clear")[1] + extra_bytes
    table._core.set_memory_limit(limit)
    return limit


@pytest.mark.parametrize(
    ("verb", "extra_bytes"),
    [("clear", 0), *((verb, extra) for verb in GROWING for extra in (0, 100_000, 1_000_000))],
)
def test_a_call_without_memory_names_the_bytes_and_changes_nothing(verb, extra_bytes):
    table = make_table()
    before = exported(table)
    limit = limit_memory(table, extra_bytes)
    asked, held = refusal(table, verb)
    assert held <= limit < held + asked
    assert len(table) == len(OLD)
    assert_equal_rows(exported(table), before)


@pytest.mark.parametrize("verb", CALLS)
def test_a_table_that_ran_out_of_memory_works_again(verb):
    table, untroubled = make_table(), make_table()
    limit_memory(table, EXTRA_BYTES[verb])
    refusal(table, verb)
    table._core.set_memory_limit(UNLIMITED)
    CALLS[verb](table)
    CALLS[verb](untroubled)
    assert len(table) == len(untroubled)
    assert_equal_rows(exported(table), exported(untroubled))


@pytest.mark.parametrize("verb", GROWING)
def test_a_call_without_memory_is_not_counted(verb):
    table = make_table()
    limit_memory(table, EXTRA_BYTES[verb])
    before, num_calls = table.stats(), table.num_update_calls
    refusal(table, verb)
    after = table.stats()
    for name in ("num_rows", "num_inserted", "num_erased", "num_skipped"):
        assert after[name] == before[name], name
    assert table.num_update_calls == num_calls


@pytest.mark.parametrize("rule", [MinCount(9), SlidingFilter(9)])
def test_an_import_of_candidates_without_memory_changes_nothing(rule):
    config = TableConfig("user", Segment(DIM), admission=rule)
    source, table = Table(config, clock=lambda: 100), Table(config, clock=lambda: 100)
    source.assign(NEW, torch.ones(len(NEW), DIM))
    table.assign(OLD, torch.ones(len(OLD), DIM))
    before, counted = table.export_candidates(), table.stats()
    limit_memory(table, 1_000_000)
    text = r"\[Table.import_candidates\] out of memory: asked for .* \(table 'user'\)"
    with pytest.raises(MemoryError, match=text):
        table.import_candidates(source.export_candidates())
    after = table.export_candidates()
    assert {name: sorted(column.tolist()) for name, column in after.items()} == {
        name: sorted(column.tolist()) for name, column in before.items()
    }
    assert table.stats() == counted


def test_reading_and_erasing_need_no_memory():
    table = make_table()
    before = table.lookup(OLD)
    table._core.set_memory_limit(0)
    assert_same_bits(table.lookup(OLD), before)
    assert table.contains(OLD).all()
    assert table.lookup_entry(OLD).present.all()
    assert len(exported(table)) == len(OLD)
    assert table.erase(OLD).all()
    assert len(table) == 0


def test_an_update_of_existing_rows_needs_no_memory():
    table = make_table()
    table._core.set_memory_limit(0)
    assert table.apply_gradients(OLD, torch.ones(len(OLD), DIM)).num_applied == len(OLD)


@pytest.mark.parametrize("verb", ["lookup", "lookup_or_insert", "lookup_entry"])
def test_a_result_without_memory_names_the_bytes(verb, tmp_path):
    # A file of holes and a result beyond the address space: neither is touched.
    n, dim = (1 << 31) - 1, 1 << 16
    huge = torch.from_file(str(tmp_path / "keys"), True, n, dtype=torch.int64)
    table = Table(TableConfig("user", Segment(dim)))
    with pytest.raises(MemoryError) as caught:
        getattr(table, verb)(huge)
    assert str(caught.value) == (
        f"[Table.{verb}] out of memory: asked for {n * dim * 4} bytes (table 'user')"
    )
    assert len(table) == 0


def test_twenty_turnovers_leave_the_index_as_small_as_it_was():
    fresh, worn = (Table(TableConfig("user", Segment(1))) for _ in range(2))
    turn_over(fresh, num_rows=20_000, num_turns=0)
    turn_over(worn, num_rows=20_000, num_turns=20)
    most = 1.5 * fresh.memory_report()["index_bytes"]
    assert worn.memory_report()["index_bytes"] <= most
