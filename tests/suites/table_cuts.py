"""Cuts: all rows of one moment, read while writers go on."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from monolith.table import Budget, Expiry, MinCount, Rows, Segment, SlidingFilter, TableConfig
from monolith.table.initializers import partitions_of
from monolith.table.optimizers import Adagrad
from monolith.table.rows import RowMemory
from tests.suites.table_base import (
    NOW,
    TableCase,
    assert_equal_rows,
    assert_same_bits,
    column,
    exported,
    keys,
    random_floats,
    random_keys,
)

OLD, NEW = random_keys(300), random_keys(300, seed=1)
CONFIG = TableConfig("user", Segment(4, Adagrad(0.5)), expiry=Expiry(30))
VALUES = random_floats(300, 4, seed=5)


def rows_like(numbers, time):
    columns = {"weight/0": VALUES[: len(numbers)], "state/0/norm": VALUES[: len(numbers)]}
    return Rows(numbers, torch.full((len(numbers),), time), columns)


WRITES = {
    "assign": lambda table: table.assign(OLD, VALUES, now=NOW + 9),
    "assign_new": lambda table: table.assign(NEW, VALUES),
    "assign_add": lambda table: table.assign_add(OLD, VALUES),
    "apply_gradients": lambda table: table.apply_gradients(OLD, VALUES),
    "apply_gradients_new": lambda table: table.apply_gradients(NEW, VALUES),
    "reinitialize": lambda table: table.reinitialize(OLD[:100]),
    "import_rows": lambda table: table.import_rows(rows_like(OLD, 7)),
    "import_rows_new": lambda table: table.import_rows(rows_like(NEW, 7)),
    "erase": lambda table: table.erase(OLD[:100]),
    "evict": lambda table: table.evict(NOW + 30 * 86_400),
    "lookup_or_insert": lambda table: table.lookup_or_insert(NEW),
    "erase_and_insert": lambda table: (table.erase(OLD), table.lookup_or_insert(OLD)),
    "evict_and_assign": lambda table: (table.evict(2 * 10**9), table.assign(OLD, VALUES)),
}
every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
RULES = {"min_count": MinCount(2), "sliding_filter": SlidingFilter(2)}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def weights(snapshot):
    """Weights of a cut of dim 1, by key."""
    rows = exported(snapshot)
    values = rows.columns.get("weight/0", column()).flatten().tolist()
    return dict(zip(rows.keys.tolist(), values, strict=True))


def cuts_beside(table, write, num_cuts):
    """So many open cuts, while `write(turn)` runs again and again on a thread."""
    start, stop = threading.Event(), threading.Event()

    def run():
        start.set()
        for turn in itertools.takewhile(lambda _: not stop.is_set(), itertools.count()):
            write(turn)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        start.wait()
        try:
            for _ in range(num_cuts):
                with table.cut() as snapshot:
                    yield snapshot
        finally:
            stop.set()
            running.result()


class Cuts(TableCase):
    def filled(self):
        table = self.build(CONFIG)
        table.apply_gradients(OLD, random_floats(300, 4), now=NOW - 5)
        return table

    @every_write
    def test_a_cut_keeps_whole_rows_as_they_were(self, write):
        table = self.filled()
        before = exported(table)
        with table.cut() as snapshot:
            write(table)
            assert_equal_rows(exported(snapshot), before)
        with pytest.raises(AssertionError):  # the write did change something
            assert_equal_rows(exported(table), before)

    @every_write
    def test_a_write_beside_a_cut_does_what_it_always_does(self, write):
        table, other = self.filled(), self.filled()
        write(other)
        with table.cut():
            write(table)
        assert_equal_rows(exported(table), exported(other))

    def test_a_cut_keeps_times(self):
        table = self.table()
        table.assign(keys(1), column(1), now=500)
        with table.cut() as snapshot:
            table.assign(keys(1), column(1), now=600)
            assert exported(snapshot).times.tolist() == [500]

    def test_each_write_after_the_cut_is_left_out(self):
        table = self.table()
        table.assign(keys(1, 2), column(1, 2))
        with table.cut() as snapshot:
            for i in range(5):
                table.assign(keys(1, i + 3), column(10 * i, 9))
                table.erase(keys(2))
            assert weights(snapshot) == {1: 1, 2: 2}
            assert weights(snapshot) == {1: 1, 2: 2}

    def test_four_open_cuts_have_a_moment_each(self):
        table = self.table()
        snapshots = []
        for i in range(4):
            table.assign(keys(1, i + 10), column(i, i))
            snapshots.append(table.cut())
        table.erase(keys(1, 10, 11))
        for i, snapshot in enumerate(snapshots):
            assert weights(snapshot) == {1: i, **{j + 10: j for j in range(i + 1)}}
            snapshot.close()
        assert weights(table) == {12: 2, 13: 3}

    def test_a_cut_outlives_earlier_and_later_ones(self):
        table = self.table()
        table.assign(keys(1), column(1))
        first = table.cut()
        table.assign(keys(1), column(2))
        second = table.cut()
        third = table.cut()
        first.close()
        third.close()
        table.assign(keys(1), column(3))
        assert weights(second) == {1: 2}
        second.close()

    def test_many_cuts_one_after_the_other(self):
        table = self.table()
        for i in range(50):
            table.assign(keys(1, i), column(i, i))
            with table.cut() as snapshot:
                table.assign(keys(1, 1000), column(-1, -1))
                assert weights(snapshot)[1] == i
            table.erase(keys(1000))

    def test_facts_of_a_cut_are_of_its_moment(self):
        table = self.table()
        table.assign(keys(1, 2), column(1, 2), now=500)
        with table.cut() as snapshot:
            table.assign(keys(3), column(1), now=900)
            assert (len(snapshot), snapshot.num_update_calls, snapshot.latest_time) == (2, 1, 500)
            assert snapshot.config == table.config
        assert (len(table), table.num_update_calls, table.latest_time) == (3, 2, 900)

    def test_the_latest_time_of_a_cut_is_that_of_its_rows(self):
        table, numbers = self.table(), random_keys(300)

        def write(turn):
            table.assign(numbers, torch.zeros(300, 1), now=turn)

        for snapshot in cuts_beside(table, write, 200):
            assert set(exported(snapshot).times.tolist()) in ({snapshot.latest_time}, set())

    def test_a_cut_of_an_empty_table_is_empty(self):
        table = self.table()
        with table.cut() as snapshot:
            table.assign(keys(1), column(1))
            assert len(snapshot) == 0
            assert list(snapshot.export()) == []

    def test_a_call_is_wholly_before_or_after_a_cut(self):
        table, numbers = self.table(), random_keys(300)

        def write(turn):
            table.assign(numbers, torch.full((300, 1), float(turn)))

        for snapshot in cuts_beside(table, write, 20):
            seen = weights(snapshot)
            assert len(set(seen.values())) <= 1
            assert len(seen) in (0, 300)
            assert weights(snapshot) == seen

    @pytest.mark.parametrize("verb", ["assign", "import_rows"])
    def test_a_call_that_leaves_zeros_out_is_wholly_before_or_after_a_cut(self, verb):
        table = self.build(TableConfig("user", Segment(1), kind="serving", skip_zero=True))
        values = torch.ones(300, 1)
        values[150:] = 0

        def write(turn):  # one half of the rows goes as the other comes
            flipped = values if turn % 2 else 1 - values
            if verb == "assign":
                table.assign(OLD, flipped)
            else:
                table.import_rows(Rows(OLD, OLD * 0, {"weight/0": flipped}))

        for snapshot in cuts_beside(table, write, 60):
            assert len(weights(snapshot)) in (0, 150)

    def test_a_cut_of_a_serving_table(self):
        table = self.build(TableConfig("user", Segment(2, precision="fp16"), kind="serving"))
        table.assign(OLD, VALUES[:, :2].contiguous())
        before = exported(table)
        with table.cut() as snapshot:
            table.assign(OLD, VALUES[:, 2:].contiguous())
            assert_equal_rows(exported(snapshot), before)

    def test_a_cut_of_bf16_rows(self):
        table = self.build(TableConfig("user", Segment(4, precision="bf16")))
        table.assign(OLD, VALUES)
        before = exported(table)
        with table.cut() as snapshot:
            table.apply_gradients(OLD, VALUES)
            assert_equal_rows(exported(snapshot), before)

    def test_a_cut_keeps_rows_that_go_for_the_budget(self):
        table = self.table(budget=Budget(40_000, "evict_oldest"))
        table.assign(torch.arange(2000), torch.ones(2000, 1), now=1)
        before = exported(table)
        with table.cut() as snapshot:
            table.assign(torch.arange(200) + 5000, torch.ones(200, 1), now=2)
            assert table.stats()["num_evicted_for_budget"] >= 200
            assert_equal_rows(exported(snapshot), before)


class CutParts(TableCase):
    """Partitions, chunks, candidates."""

    def changed(self):
        """The rows at a cut, and the cut of a table that changed since in every way."""
        table = self.build(CONFIG)
        table.apply_gradients(OLD, VALUES)
        before, snapshot = exported(table), table.cut()
        table.assign(OLD[:150], -VALUES[:150])
        table.erase(OLD[100:200])
        table.lookup_or_insert(NEW)
        return before, snapshot

    @pytest.mark.parametrize("chunk_rows", [1, 7, 299, 300, 301])
    def test_chunks_of_a_cut_are_full_except_the_last(self, chunk_rows):
        before, snapshot = self.changed()
        sizes = [len(chunk) for chunk in snapshot.export(chunk_rows=chunk_rows)]
        full, rest = divmod(300, chunk_rows)
        assert sizes == [chunk_rows] * full + [rest] * (rest > 0)
        assert_equal_rows(exported(snapshot, chunk_rows=chunk_rows), before)

    @pytest.mark.parametrize("chunk_rows", [7, 299, 1000])
    def test_chunks_in_one_memory_are_those_in_their_own(self, chunk_rows):
        before, snapshot = self.changed()
        memory, num_seen = RowMemory(), 0
        for chunk in snapshot.export(chunk_rows=chunk_rows, memory=memory):
            places = torch.arange(num_seen, num_seen + len(chunk))
            assert_equal_rows(chunk, before.take(places))
            num_seen += len(chunk)
        assert num_seen == 300

    def test_a_memory_may_go_from_table_to_table(self):
        memory = RowMemory()
        for dim in (5, 1, 3):
            table = self.build(TableConfig("user", Segment(dim, Adagrad(0.1))))
            table.assign(OLD, torch.ones(len(OLD), dim))
            with table.cut() as snapshot:
                rows = next(snapshot.export(memory=memory))
                assert_equal_rows(rows, exported(table))

    def test_an_export_of_a_cut_resumes_after_a_key(self):
        before, snapshot = self.changed()
        for i in (0, 150, 299):
            rest = exported(snapshot, after=int(before.keys[i]))
            assert rest.keys.tolist() == before.keys[i + 1 :].tolist()

    def test_partitions_of_a_cut_cover_it_without_overlap(self):
        before, snapshot = self.changed()
        parts = [exported(snapshot, partitions=range(i, i + 512)) for i in range(0, 4096, 512)]
        assert torch.cat([part.keys for part in parts]).equal(before.keys)

    def test_a_cut_takes_partitions_from_an_iterator(self):
        before, snapshot = self.changed()
        assert_equal_rows(exported(snapshot, partitions=iter(range(4096))), before)

    def test_released_partitions_leave_the_others(self):
        before, snapshot = self.changed()
        snapshot.release(range(2048))
        rest = exported(snapshot, partitions=range(2048, 4096))
        kept = torch.from_numpy(partitions_of(before.keys.numpy()) >= 2048)
        assert_equal_rows(rest, before.take(kept))

    def test_a_release_of_everything_keeps_no_bytes(self):
        table = self.build(CONFIG)
        table.assign(OLD, VALUES)
        with table.cut() as snapshot:
            table.assign(OLD, -VALUES)
            snapshot.release(range(4096))
            table.erase(OLD)
            assert table.memory_report()["cut_bytes"] == 0

    def test_a_closed_cut_keeps_no_bytes(self):
        table = self.build(CONFIG)
        table.assign(OLD, VALUES)
        with table.cut():
            table.assign(OLD, -VALUES)
        assert table.memory_report()["cut_bytes"] == 0

    @every_rule
    def test_a_cut_has_the_candidates_of_its_moment(self, rule):
        table = self.table(admission=rule)
        table.assign(OLD, torch.zeros(300, 1))
        before = table.export_candidates()
        with table.cut() as snapshot:
            for numbers in (NEW, OLD, NEW, OLD):
                table.assign(numbers, torch.zeros(300, 1))
            found = snapshot.export_candidates()
        assert found.keys() == before.keys()
        for name in before:
            assert_same_bits(found[name], before[name])
        assert table.contains(OLD).all()

    @every_rule
    def test_a_cut_has_the_candidates_of_some_partitions(self, rule):
        table = self.table(admission=rule)
        table.assign(OLD, torch.zeros(300, 1))
        before = table.export_candidates(range(1000, 2000))
        with table.cut() as snapshot:
            table.assign(OLD, torch.zeros(300, 1))
            found = snapshot.export_candidates(range(1000, 2000))
        assert all(torch.equal(found[name], before[name]) for name in before)

    @every_rule
    def test_a_cut_leaves_out_imported_candidates(self, rule):
        table, source = self.table(admission=rule), self.table(admission=rule)
        source.assign(OLD, torch.zeros(300, 1))
        with table.cut() as snapshot:
            table.import_candidates(source.export_candidates())
            assert all(len(values) == 0 for values in snapshot.export_candidates().values())

    def test_a_cut_of_a_table_without_admission_has_no_candidates(self):
        with self.table().cut() as snapshot:
            assert snapshot.export_candidates() == {}
