"""Admission: which missing keys get a row, and what is remembered of the others."""

import pytest
import torch

from monolith.embedding import MinCount, Probabilistic, Rows, SlidingFilter, Uniform
from tests.suites.table_base import (
    TableCase,
    column,
    exported,
    keys,
    keys_of_hashes,
    random_keys,
    read,
)
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


class AdmissionColumns(TableCase):
    def test_candidates_go_on_in_another_table(self):
        table, other = (self.table(admission=MinCount(2)) for _ in range(2))
        numbers = random_keys(500)
        table.assign(numbers, torch.zeros(500, 1), now=50)
        other.import_candidates(table.export_candidates())
        assert candidates(other) == candidates(table)
        assert other.stats()["num_candidates"] == 500
        for each in (table, other):
            each.assign(numbers, torch.zeros(500, 1))
            each.assign(numbers[:100].contiguous(), torch.zeros(100, 1))
            assert len(each) == 100

    def test_partitions_can_move_one_by_one(self):
        table, other = (self.table(admission=MinCount(2)) for _ in range(2))
        wanted, left = in_partition(9, 5), in_partition(10, 5)
        table.assign(torch.cat([wanted, left]), torch.zeros(10, 1))
        other.import_candidates(table.export_candidates(partitions=[9, 9]))
        assert [key for key, _, _ in candidates(other)] == wanted.tolist()

    def test_import_replaces_equal_candidates_and_keeps_the_cap(self):
        a, b, c = in_partition(5, 3).tolist()
        table = self.table(admission=MinCount(9, max_bytes=2 * 16 * 4096))
        step(table, a, b)
        columns = {"key": keys(a, c), "count": keys(7, 8), "time": keys(1, 2)}
        table.import_candidates(columns)
        assert candidates(table) == [(a, 7, 1), (c, 8, 2)]
        assert table.stats()["num_dropped_candidates"] == 1

    def test_filters_go_on_in_another_table(self):
        table, other = (self.table(admission=SlidingFilter(1, capacity=1)) for _ in range(2))
        numbers = torch.cat([in_partition(3, 120), in_partition(4, 7)])
        table.assign(numbers, torch.zeros(127, 1))
        other.import_candidates(table.export_candidates())
        assert other.stats()["num_candidates"] == table.stats()["num_candidates"]
        for each in (table, other):
            each.assign(numbers, torch.zeros(127, 1))
        assert len(table) == 127
        assert exported(table).keys.tolist() == exported(other).keys.tolist()

    def test_random_answers_go_on_in_another_table(self):
        table, other = (self.table(admission=Probabilistic(3)) for _ in range(2))
        for number in range(5):
            step(table, number)
        assert table.export_candidates() == {}
        other.num_update_calls = table.num_update_calls
        numbers = range(100, 200)
        assert step(table, *numbers) == step(other, *numbers)
        assert table.contains(keys(*numbers)).tolist() == other.contains(keys(*numbers)).tolist()

    def test_table_without_admission_has_no_columns(self):
        table = self.table()
        assert table.export_candidates() == {}
        table.import_candidates({})

    @pytest.mark.parametrize("rule", ALL_RULES)
    def test_serving_table_admits_every_key(self, rule):
        table = self.table(admission=rule, kind="serving")
        table.assign(keys(1, 2), column(1, 2))
        assert read(table, 1, 2) == [1, 2]
        assert table.export_candidates() == {}


class AdmissionFilters(TableCase):
    def test_vector_of_three_ids_and_threshold_three(self):
        table = self.table(admission=SlidingFilter(3))
        seen = []
        for _ in range(4):
            table.apply_gradients(keys(0, 0, 1), column(-1, -1, -1))
            seen += read(table, 0, 1)
        assert seen == pytest.approx([0, 0, 0, 0, 0.2, 0, 0.4, 0.1])

    @pytest.mark.parametrize("threshold", [1, 15, 16, 100])
    def test_filter_counts_to_any_threshold(self, threshold):
        table = self.table(admission=SlidingFilter(threshold))
        applied = [step(table, 5).num_applied for _ in range(threshold + 2)]
        assert applied == [0] * threshold + [1, 1]

    def test_threshold_zero_is_neither_filtered_nor_counted(self):
        table = self.table(admission=SlidingFilter(1, slots={0: 0}))
        ruled = [(1 << 48) | i for i in range(5)]
        assert step(table, *range(5), *ruled).num_refused == 5
        assert table.stats()["num_candidates"] == 5

    def test_filter_remembers_an_admitted_key_that_was_erased(self):
        table = self.table(admission=SlidingFilter(1))
        step(table, 1)
        step(table, 1)
        table.erase(keys(1))
        assert step(table, 1).num_inserted == 1

    @pytest.mark.parametrize(("capacity", "is_remembered"), [(4096 * 3000, True), (1, False)])
    def test_filter_forgets_the_oldest_beyond_its_capacity(self, capacity, is_remembered):
        table = self.table(admission=SlidingFilter(1, capacity=capacity))
        first, *others = in_partition(1, 800).split(1)
        table.assign(first, column(1))
        table.assign(torch.cat(others), torch.zeros(799, 1))
        assert bool(table.stats()["num_dropped_candidates"]) != is_remembered
        table.assign(first, column(1))
        assert table.contains(first).tolist() == [is_remembered]

    @pytest.mark.parametrize(("split_num", "num_kept"), [(5, 300), (150, 148)])
    def test_number_of_splits_decides_how_much_is_forgotten_at_once(self, split_num, num_kept):
        table = self.table(admission=SlidingFilter(1, capacity=1, split_num=split_num))
        table.assign(in_partition(1, 600), torch.zeros(600, 1))
        stats = table.stats()
        assert stats["num_candidates"] + stats["num_dropped_candidates"] == 600
        assert abs(stats["num_candidates"] - num_kept) <= 40

    @pytest.mark.parametrize(
        ("count", "equal", "expected"),
        [(1, False, 10_000 / 7), (2, False, 20_000 / 7), (1, True, 3482), (2, True, 5751)],
    )
    def test_share_of_keys_that_chance_admits(self, count, equal, expected):
        table = self.table(admission=Probabilistic(7, equal_probability=equal))
        numbers = torch.arange(10_000).repeat(count)
        applied = table.apply_gradients(numbers, torch.zeros(10_000 * count, 1))
        assert applied.num_inserted == pytest.approx(expected, abs=150)
        assert applied.num_inserted + applied.num_refused == 10_000

    def test_chance_is_certain_at_the_threshold(self):
        table = self.table(admission=Probabilistic(3))
        assert step(table, *[5] * 4, *[6] * 4).num_inserted == 2

    def test_chance_depends_on_seed_and_call(self):
        def admitted(seed, num_calls=1):
            table = self.table(admission=Probabilistic(2), seed=seed)
            for _ in range(num_calls):
                table.erase(keys(*range(100)))
                step(table, *range(100))
            return table.contains(keys(*range(100))).tolist()

        assert admitted(1) == admitted(1)
        assert admitted(1) != admitted(2)
        assert admitted(1) != admitted(1, num_calls=2)


class BadCandidates(TableCase):
    def refuse_columns(self, rule, text, **columns):
        table = self.table(admission=rule)
        with pytest.raises((ValueError, TypeError)) as caught:
            table.import_candidates(columns)
        assert str(caught.value) == f"[Table.import_candidates] expected {text} (table 'user')"
        assert table.stats()["num_candidates"] == 0

    def test_columns_of_another_rule(self):
        self.refuse_columns(
            MinCount(1), "columns ['count', 'key', 'time'], got ['key']", key=keys(1)
        )
        self.refuse_columns(None, "columns [], got ['key']", key=keys(1))

    def test_columns_of_another_dtype_or_length(self):
        text = "key as a torch.Tensor, got list"
        self.refuse_columns(MinCount(1), text, key=[1], count=keys(1), time=keys(1))
        text = "columns of equal length, got {'key': 1, 'count': 2, 'time': 1}"
        self.refuse_columns(MinCount(1), text, key=keys(1), count=keys(1, 2), time=keys(1))

    def test_numbers_of_candidates_outside_their_range(self):
        text = "count in [1, 4294967295], got [0, 3]"
        self.refuse_columns(MinCount(1), text, key=keys(1, 2), count=keys(0, 3), time=keys(1, 1))
        text = "time in [0, 4294967295], got [-1, -1]"
        self.refuse_columns(MinCount(1), text, key=keys(1), count=keys(1), time=keys(-1))

    @pytest.mark.parametrize(
        ("row", "text"),
        [
            ((4096, 0, 0, 1), "partition in [0, 4095], got [4096, 4096]"),
            ((0, 7, 0, 1), "split in [-1, 6], got [7, 7]"),
            ((0, -1, 7, 1), "cell of split -1 in [0, 6], got [7, 7]"),
            ((0, -1, 0, -1), "value of split -1 in [0, 9223372036854775807], got [-1, -1]"),
            ((0, 0, 124, 1), "cell in [0, 123], got [124, 124]"),
            ((0, 0, 0, 0), "value in [1, 4294967295], got [0, 0]"),
        ],
    )
    def test_numbers_of_filters_outside_their_range(self, row, text):
        names = ("partition", "split", "cell", "value")
        columns = {name: keys(value) for name, value in zip(names, row, strict=True)}
        self.refuse_columns(SlidingFilter(1, capacity=1), text, **columns)

    def test_candidates_of_a_partition_outside_its_range(self):
        table = self.table(admission=MinCount(1))
        text = (
            r"\[Table.export_candidates\] expected partitions in \[0, 4096\), got 4096 "
            r"\(table 'user'\)"
        )
        with pytest.raises(ValueError, match=text):
            table.export_candidates(partitions=[4096])
