"""A load into a table that has no room for everything: an error or a warning with the counts."""

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.table import Budget, MinCount
from monolith.table.disk import restore_tables, save_tables
from tests.suites.table_budget import used
from tests.table.disk.cases import make, plain

RULE = MinCount(0, {1: 9})


def text(table, path, total, num_rows, num_candidates):
    return (
        f"expected room for {total} rows and their candidates, got none for {num_rows} rows and "
        f"{num_candidates} candidates under {table.config.budget} (table 'user' in {path}); "
        "make a table with a larger one and use restore_tables"
    )


def saved_rows(path, num_rows=2000, num_candidates=0):
    table = make(plain(admission=RULE))
    table.assign(torch.arange(num_rows), torch.ones(num_rows, 1))
    table.assign(torch.arange(num_candidates) + (1 << 48), torch.ones(num_candidates, 1))
    save_tables(table, path)
    return table


def small(policy, max_bytes=20_000):
    return make(plain(admission=RULE, budget=Budget(max_bytes, policy)))


def test_rows_that_a_budget_refuses_end_the_load(tmp_path):
    saved_rows(tmp_path)
    table = small("refuse")
    with pytest.raises(FailedPreconditionError) as caught:
        restore_tables(table, tmp_path)
    num_refused = table.stats()["num_refused"]
    assert num_refused > 1000
    assert str(caught.value).endswith(text(table, tmp_path, 2000, num_refused, 0))
    assert len(table) == 0


def test_candidates_that_a_budget_refuses_end_the_load(tmp_path):
    saved_rows(tmp_path, 10, 2000)
    table = small("refuse")
    with pytest.raises(FailedPreconditionError) as caught:
        restore_tables(table, tmp_path)
    num_dropped = table.stats()["num_dropped_candidates"]
    assert num_dropped > 1000
    assert str(caught.value).endswith(text(table, tmp_path, 10, 0, num_dropped))
    assert table.stats()["num_candidates"] == 0


@pytest.mark.parametrize("policy", ["evict_oldest", "evict_least_frequent"])
def test_rows_that_make_room_are_counted_in_a_warning(tmp_path, policy):
    saved_rows(tmp_path)
    table = small(policy)
    with pytest.warns(RuntimeWarning) as caught:
        restore_tables(table, tmp_path)
    assert used(table) <= 20_000
    assert str(caught[0].message).endswith(text(table, tmp_path, 2000, 2000 - len(table), 0))
    stats = table.stats()
    assert stats["num_evicted_for_budget"] + stats["num_refused"] == 2000 - len(table) > 1000


def test_a_larger_budget_is_the_way_out(tmp_path):
    table = saved_rows(tmp_path)
    larger = small("refuse", 1 << 20)
    restore_tables(larger, tmp_path)
    assert len(larger) == len(table)
