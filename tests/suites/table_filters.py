"""Approximate admission: the sliding filter and chance; and candidates on their way elsewhere."""

import pytest
import torch

from monolith.table import MinCount, Probabilistic, SlidingFilter
from tests.suites.table_admission import ALL_RULES, candidates, in_partition, step
from tests.suites.table_base import TableCase, column, exported, keys, random_keys, read


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

    def test_columns_that_are_no_mapping(self):
        text = r"\[Table.import_candidates\] expected columns by name, got list \(table 'user'\)"
        with pytest.raises(TypeError, match=text):
            self.table(admission=MinCount(1)).import_candidates([keys(1)])

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
