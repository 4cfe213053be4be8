"""Admission: which missing keys get a row, and what is remembered of the others."""

import pytest
import torch

from monolith.table import MinCount, Probabilistic, Rows, SlidingFilter, Uniform
from tests.suites.table_base import TableCase, column, keys, keys_of_hashes, random_keys, read
from tests.suites.table_concurrency import run_together
from tests.suites.table_verbs import MATRIX_VERBS, call

ALL_RULES = [MinCount(2), SlidingFilter(2), Probabilistic(1 << 31 - 1)]


def step(table, *numbers, now=None):
    """One gradient of -1 per occurrence; the counts."""
    return table.apply_gradients(keys(*numbers), column(*[-1] * len(numbers)), now=now)


def in_partition(partition, n):
    """n keys of one partition."""
    lows = [i * 0x9E3779B97F4A7C15 % (1 << 52) for i in range(n)]
    return keys_of_hashes([(partition << 52) | low for low in lows])


def candidates(table, **options):
    """(key, count, time) of each candidate, in the order of the export."""
    columns = table.export_candidates(**options)
    return list(zip(*(columns[name].tolist() for name in ("key", "count", "time")), strict=True))


class AdmissionByCount(TableCase):
    def test_key_is_admitted_after_threshold_occurrences_in_earlier_calls(self):
        table = self.table(admission=MinCount(3))
        results = [step(table, 7) for _ in range(5)]
        assert [result.num_refused for result in results] == [1, 1, 1, 0, 0]
        assert [result.num_inserted for result in results] == [0, 0, 0, 1, 0]
        assert [result.num_applied for result in results] == [0, 0, 0, 1, 1]
        assert read(table, 7) == pytest.approx([0.2])
        assert table.stats()["num_refused"] == 3

    def test_every_occurrence_of_a_call_counts_and_none_for_the_call_itself(self):
        table = self.table(admission=MinCount(3))
        assert step(table, 7, 7, 7, 7).num_refused == 1
        assert step(table, 7).num_inserted == 1

    @pytest.mark.parametrize("verb", MATRIX_VERBS)
    def test_verbs_that_ask(self, verb):
        table = self.table(admission=MinCount(1))
        call(table, verb, keys(1, 2, 2))
        assert table.stats()["num_refused"] == 2
        assert [(key, count) for key, count, _ in sorted(candidates(table))] == [(1, 1), (2, 2)]
        call(table, verb, keys(1))
        assert table.contains(keys(1, 2)).tolist() == [True, False]

    def test_verbs_that_do_not_ask(self):
        table = self.table(admission=MinCount(1))
        table.lookup_or_insert(keys(1))
        table.reinitialize(keys(2))
        table.import_rows(Rows(keys(3), keys(1), {"weight/0": column(5)}))
        assert table.contains(keys(1, 2, 3)).all()
        assert candidates(table) == []
        assert table.stats()["num_refused"] == 0

    def test_existing_keys_are_not_asked_about(self):
        table = self.table(admission=MinCount(5))
        table.lookup_or_insert(keys(1))
        assert step(table, 1, 2).num_applied == 1
        assert [key for key, _, _ in candidates(table)] == [2]

    def test_mixed_batch_changes_admitted_rows_only(self):
        table = self.table(admission=MinCount(1))
        step(table, 1)
        table.assign(keys(1, 2, 1, 3), column(1, 2, 3, 4))
        assert read(table, 1, 2, 3) == [3, 0, 0]
        table.assign_add(keys(3, 4, 3), column(1, 1, 2))
        assert read(table, 3, 4) == [3, 0]

    def test_skipped_occurrences_do_not_count(self):
        table = self.table(admission=MinCount(2), non_finite="skip")
        table.apply_gradients(keys(1, 1, 2), column(1, float("nan"), float("inf")))
        assert [(key, count) for key, count, _ in candidates(table)] == [(1, 1)]

    @pytest.mark.parametrize("rule", ALL_RULES)
    def test_missing_key_with_a_rule_reads_zeros(self, rule):
        table = self.table(2, initializer=Uniform(1, 2), admission=rule)
        assert table.lookup(keys(5)).tolist() == [[0, 0]]
        assert (table.lookup_or_insert(keys(5)) >= 1).all()

    @pytest.mark.parametrize("kind", [MinCount, SlidingFilter, Probabilistic])
    def test_thresholds_per_slot(self, kind):
        table = self.table(initializer=Uniform(1, 2), admission=kind((1 << 20) - 1, slots={7: 0}))
        free, ruled = (7 << 48) | 5, (8 << 48) | 5
        assert read(table, ruled) == [0]
        assert read(table, free)[0] >= 1
        assert step(table, free, ruled).num_inserted == 1
        assert table.contains(keys(free, ruled)).tolist() == [True, False]

    def test_slot_of_a_negative_key_is_that_of_its_bits(self):
        table = self.table(admission=MinCount(1, slots={32767: 0}))
        assert step(table, -1, 1).num_inserted == 1
        assert table.contains(keys(-1)).all()

    def test_large_threshold_is_reached(self):
        table = self.table(admission=MinCount(100))
        step(table, *[1] * 99)
        assert step(table, 1).num_refused == 1
        assert step(table, 1).num_inserted == 1

    def test_admitted_key_leaves_and_starts_again_after_erase(self):
        table = self.table(admission=MinCount(1))
        step(table, 1)
        step(table, 1)
        assert candidates(table) == []
        table.erase(keys(1))
        assert step(table, 1).num_refused == 1

    @pytest.mark.parametrize(("ttl", "num_inserted"), [(101, 1), (100, 0), (None, 1)])
    def test_candidate_unseen_for_its_ttl_starts_again(self, ttl, num_inserted):
        table = self.table(admission=MinCount(1, ttl_seconds=ttl))
        step(table, 1, now=1000)
        assert step(table, 1, now=1100).num_inserted == num_inserted

    def test_candidate_keeps_the_later_time(self):
        table = self.table(admission=MinCount(9))
        for now in (100, 50, 70):
            step(table, 1, now=now)
        assert candidates(table) == [(1, 3, 100)]

    def test_least_recently_seen_candidate_of_a_full_partition_goes(self):
        a, b, c, d = in_partition(77, 4).tolist()
        table = self.table(admission=MinCount(5, max_bytes=2 * 16 * 4096))
        step(table, a, b)
        step(table, a)
        step(table, c, d)
        assert [key for key, _, _ in candidates(table)] == [c, d]
        stats = table.stats()
        assert (stats["num_dropped_candidates"], stats["num_candidates"]) == (2, 2)

    def test_cap_is_per_partition_and_at_least_one(self):
        table = self.table(admission=MinCount(5, max_bytes=1))
        numbers = torch.cat([in_partition(p, 3) for p in range(20)])
        table.assign(numbers, torch.zeros(60, 1))
        assert table.stats()["num_candidates"] == 20
        assert table.stats()["num_dropped_candidates"] == 40

    def test_clear_forgets_candidates(self):
        table = self.table(admission=MinCount(1))
        step(table, 1)
        table.clear()
        assert table.stats()["num_candidates"] == 0
        assert step(table, 1).num_refused == 1

    def test_candidates_count_as_memory(self):
        table = self.table(admission=MinCount(1))
        table.assign(random_keys(1000), torch.zeros(1000, 1))
        report = table.memory_report()
        assert report["candidate_bytes"] >= 16 * 1000
        parts = ("row_bytes", "index_bytes", "candidate_bytes")
        assert report["total_bytes"] >= sum(report[name] for name in parts)

    def test_call_that_is_refused_asks_nothing(self):
        table = self.table(admission=MinCount(1))
        with pytest.raises(ValueError, match="finite"):
            table.apply_gradients(keys(1, 2), column(1, float("nan")))
        assert candidates(table) == []

    def test_threads_of_many_calls_admit_at_the_same_count_as_one(self):
        table = self.table(admission=MinCount(100))

        def job():
            return sum(step(table, *range(50)).num_applied for _ in range(25))

        assert sum(run_together(*[job] * 8)) == 50 * (8 * 25 - 100)
        assert len(table) == 50
        assert table.stats()["num_refused"] == 50 * 100
