"""Byte budget: the bound holds, and what goes or stays out at it is counted."""

import pytest
import torch

from monolith.table import Budget, Expiry, MinCount, Rows, SlidingFilter
from tests.suites.table_base import TableCase, column, exported, keys, random_keys
from tests.suites.table_concurrency import run_together
from tests.suites.table_verbs import WRITERS

LEAST = 4096 + 4 + 64
EVICTING = ["evict_oldest", "evict_least_frequent"]


def used(table):
    return table.memory_report()["total_bytes"]


class Budgets(TableCase):
    def full(self, policy, max_bytes=40_000, **options):
        """A table of dim 1 that was given more keys than fit, at times 1, 2, 3, ..."""
        table = self.table(budget=Budget(max_bytes, policy), **options)
        for i in range(40):
            table.assign(torch.arange(50) + 50 * i, torch.ones(50, 1), now=i + 1)
        return table

    @pytest.mark.parametrize("policy", ["refuse", *EVICTING])
    @pytest.mark.parametrize("max_bytes", [LEAST, 10_000, 30_000])
    def test_bound_holds_after_every_call(self, policy, max_bytes):
        table = self.table(budget=Budget(max_bytes, policy))
        for i in range(0, 3000, 100):
            table.apply_gradients(torch.arange(i, i + 100), torch.ones(100, 1), now=i)
            assert used(table) <= max_bytes
        assert len(table) >= (max_bytes - 4096) // 72

    def test_refuse_keeps_old_rows_and_counts_new_keys(self):
        table = self.full("refuse")
        num_rows = len(table)
        assert table.contains(torch.arange(50)).all()
        applied = table.apply_gradients(keys(0, 5000, 5001, 5001), column(1, 1, 1, 1))
        assert tuple(applied) == (1, 0, 2, 0)
        assert table.lookup(keys(5000)).tolist() == [[0]]
        assert len(table) == num_rows
        stats = table.stats()
        assert stats["num_refused"] == 2000 - num_rows + 2
        assert stats["num_evicted_for_budget"] == 0

    @pytest.mark.parametrize("policy", EVICTING)
    def test_eviction_makes_room_for_every_new_key_and_is_counted(self, policy):
        table = self.full(policy)
        num_rows = len(table)
        before = table.stats()["num_evicted_for_budget"]
        applied = table.apply_gradients(keys(5000, 5001, 5001), column(1, 1, 1))
        assert tuple(applied) == (2, 2, 0, 0)
        assert table.contains(keys(5000, 5001)).all()
        assert len(table) == num_rows
        stats = table.stats()
        assert stats["num_evicted_for_budget"] - before == 2
        assert stats["num_inserted"] - stats["num_evicted_for_budget"] == len(table)
        assert stats["num_refused"] == 0

    def test_oldest_rows_go_first(self):
        table = self.full("evict_oldest")
        present = table.contains(torch.arange(2000)).reshape(40, 50).float().mean(1)
        assert present[-5:].mean() > 0.95
        assert present[:5].mean() < 0.2

    def test_rows_that_are_used_stay(self):
        table = self.table(budget=Budget(40_000, "evict_least_frequent"))
        hot = torch.arange(100)
        for i in range(60):
            table.assign(hot, torch.ones(100, 1), now=1)
            table.assign(torch.arange(50) + 1000 + 50 * i, torch.ones(50, 1), now=100 + i)
        assert table.contains(hot).float().mean() > 0.9
        assert table.stats()["num_evicted_for_budget"] > 1000

    def test_uses_age_so_that_old_favourites_go(self):
        table = self.table(budget=Budget(40_000, "evict_least_frequent"))
        favourites = torch.arange(100)
        for _ in range(8):
            table.assign(favourites, torch.ones(100, 1), now=1)
        for i in range(400):
            table.assign(torch.arange(50) + 1000 + 50 * (i // 2), torch.ones(50, 1), now=100 + i)
        assert table.contains(favourites).float().mean() < 0.3

    @pytest.mark.parametrize("policy", EVICTING)
    @pytest.mark.parametrize("first_new", range(5000, 5100, 20))
    def test_rows_of_the_call_itself_do_not_go(self, first_new, policy):
        table = self.full(policy)
        oldest = exported(table).keys[exported(table).times.argsort()][:12]
        table.assign(oldest, torch.full((12, 1), 7.0), now=0)
        numbers = torch.cat([oldest, torch.arange(12) + first_new])
        table.assign_add(numbers, torch.ones(24, 1), now=0)
        assert table.contains(numbers).all()
        assert table.lookup(oldest).tolist() == [[8.0]] * 12

    @pytest.mark.parametrize("policy", EVICTING)
    def test_call_with_more_new_keys_than_fit_refuses_the_rest(self, policy):
        table = self.table(budget=Budget(20_000, policy))
        applied = table.apply_gradients(torch.arange(5000), torch.ones(5000, 1))
        assert applied.num_inserted == applied.num_applied == len(table)
        assert applied.num_inserted + applied.num_refused == 5000
        assert applied.num_inserted > 100
        assert used(table) <= 20_000

    @pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
    @pytest.mark.parametrize("policy", ["refuse", *EVICTING])
    def test_every_inserting_verb_keeps_the_bound(self, write, policy):
        table = self.table(budget=Budget(12_000, policy))
        for i in range(0, 2000, 40):
            write(table, torch.arange(i, i + 40), now=i)
        assert used(table) <= 12_000
        has_last = bool(table.contains(torch.arange(1960, 2000)).all())
        assert has_last == (policy != "refuse")

    @pytest.mark.parametrize("policy", ["refuse", *EVICTING])
    def test_import_keeps_the_bound(self, policy):
        table = self.table(budget=Budget(12_000, policy))
        for i in range(0, 2000, 40):
            rows = Rows(
                torch.arange(i, i + 40), torch.full((40,), i), {"weight/0": torch.ones(40, 1)}
            )
            table.import_rows(rows)
        assert used(table) <= 12_000
        stats = table.stats()
        assert stats["num_refused"] + stats["num_evicted_for_budget"] == 2000 - len(table)

    def test_refused_keys_read_as_missing_ones(self):
        table = self.full("refuse")
        assert table.lookup_or_insert(keys(0, 5000)).tolist() == [[1], [0]]
        assert table.reinitialize(keys(0, 5000, 5000)).tolist() == [1, 0, 0]
        assert table.contains(keys(5000)).tolist() == [False]

    def test_erased_rows_make_room(self):
        table = self.full("refuse")
        table.erase(torch.arange(50))
        applied = table.apply_gradients(torch.arange(50) + 5000, torch.ones(50, 1))
        assert applied.num_inserted == 50

    def test_expired_rows_make_room(self):
        table = self.full("refuse", expiry=Expiry(1))
        assert table.evict(10 + 86_400) == 500
        applied = table.apply_gradients(torch.arange(50) + 5000, torch.ones(50, 1))
        assert applied.num_inserted == 50

    def test_budget_is_asked_after_admission(self):
        table = self.full("refuse", admission=MinCount(1, slots={0: 0}))
        ruled = (1 << 48) | 1
        assert table.apply_gradients(keys(ruled), column(1)).num_refused == 1
        assert used(table) <= 40_000

    @pytest.mark.parametrize("rule", [MinCount(1), SlidingFilter(1, capacity=1)])
    @pytest.mark.parametrize("policy", ["refuse", *EVICTING])
    def test_candidates_count_in_the_budget(self, policy, rule):
        table = self.table(admission=rule, budget=Budget(75_000, policy))
        numbers = random_keys(5000)
        for part in numbers.split(1000):
            table.apply_gradients(part, torch.ones(1000, 1))
            assert used(table) <= 75_000
        assert table.stats()["num_candidates"] > 20

    @pytest.mark.parametrize("rule", [MinCount(1), SlidingFilter(1, capacity=1)])
    def test_import_of_candidates_keeps_the_bound_and_counts_the_rest(self, rule):
        source = self.table(admission=rule)
        source.assign(random_keys(20_000), torch.ones(20_000, 1))
        columns = source.export_candidates()
        table = self.table(admission=rule, budget=Budget(200_000))
        table.import_candidates(columns)
        assert used(table) <= 200_000
        num_cells = int((columns["split"] >= 0).sum()) if "split" in columns else 20_000
        stats = table.stats()
        assert 0 < stats["num_candidates"] < num_cells
        assert stats["num_candidates"] + stats["num_dropped_candidates"] == num_cells

    def test_clear_frees_the_budget(self):
        table = self.full("refuse")
        table.clear()
        assert table.apply_gradients(torch.arange(50) + 5000, torch.ones(50, 1)).num_inserted == 50

    @pytest.mark.parametrize("policy", ["refuse", *EVICTING])
    def test_bound_holds_beside_other_threads(self, policy):
        table = self.table(4, budget=Budget(60_000, policy))

        def write(i):
            for part in random_keys(2000, seed=i).split(100):
                table.apply_gradients(part, torch.ones(100, 4))
                assert used(table) <= 60_000

        run_together(*(lambda i=i: write(i) for i in range(4)))
        assert len(table) == len(exported(table))
        stats = table.stats()
        assert stats["num_inserted"] - stats["num_evicted_for_budget"] == len(table)
