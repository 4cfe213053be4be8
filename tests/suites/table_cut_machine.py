"""Random sequences of writes, cuts and reads of cursors on a table and on the reference table."""

import torch
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from monolith.table import Expiry, MinCount, Segment, TableConfig
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.snapshot import MAX_CUTS
from tests.suites.table_base import (
    NOW,
    assert_equal_rows,
    assert_same_bits,
    exported,
    random_keys,
)
from tests.suites.table_machine import POOL, PairMachine, batches, make_floats, seeds, threads

CUT_CONFIGS = {
    "two-segments": TableConfig(
        "user",
        [Segment(3, SGD(0.5)), Segment(2, Adagrad(0.5), precision="bf16")],
        expiry=Expiry(5),
    ),
    "min-count": TableConfig("user", Segment(1), admission=MinCount(1), expiry=Expiry(5)),
}

cursors = st.sampled_from(["a", "b"])
places = st.integers(0, 11)  # of a cut or a cursor among those that are there


class CutMachine(PairMachine):
    """Rules for up to four open cuts, for cursors that cuts and reads share, and for writes."""

    def __init__(self, make, config):
        super().__init__(make, config)
        self.cuts = []  # pairs of snapshots

    @rule(
        verb=st.sampled_from(["assign", "assign_add", "apply_gradients"]), batch=batches, seed=seeds
    )
    def write(self, verb, batch, seed):
        values = make_floats(seed, (len(batch), self.config.dim))
        self.both(verb, torch.tensor(batch, dtype=torch.int64), values, now=seed % (2 * NOW))

    @rule(seed=seeds, n=st.integers(100, 3000), num_threads=threads)
    def write_many(self, seed, n, num_threads):
        values = make_floats(seed, (n, self.config.dim))
        self.both("assign", random_keys(n, seed=seed % 3), values, num_threads=num_threads)

    @rule(batch=batches)
    def erase(self, batch):
        self.both("erase", torch.tensor(batch, dtype=torch.int64))

    @rule(now=st.integers(0, 2 * NOW))
    def evict(self, now):
        self.both("evict", now)

    @rule(cursor=st.none() | cursors)
    def cut(self, cursor):
        if len(self.cuts) < MAX_CUTS:
            self.cuts.append(self.both("cut", cursor=cursor))
            assert len({(len(s), s.num_update_calls, s.latest_time) for s in self.cuts[-1]}) == 1

    @precondition(lambda self: self.cuts)
    @rule(place=places)
    def read_changes(self, place):
        first, second = self.cuts[place % len(self.cuts)]
        if first.cursor is not None:
            self.check_touched(first.changes(), second.changes())
            self.check_entries(first, second, second.changes().keys)

    @precondition(lambda self: self.cuts)
    @rule(place=places, batch=batches)
    def read_entries(self, place, batch):
        numbers = torch.tensor([*batch, *POOL], dtype=torch.int64)
        self.check_entries(*self.cuts[place % len(self.cuts)], numbers)

    @precondition(lambda self: self.cuts)
    @rule(place=places)
    def export_cut(self, place):
        first, second = self.cuts[place % len(self.cuts)]
        assert len(first) == len(second)
        if len(second):
            assert_equal_rows(exported(first), exported(second))

    @precondition(lambda self: self.cuts)
    @rule(place=places, is_read=st.booleans(), is_followed=st.booleans())
    def close(self, place, is_read, is_followed):
        first, second = self.cuts.pop(place % len(self.cuts))
        for snapshot in (first, second):
            snapshot.close(is_read=is_read)
        if is_followed and second.cursor is not None:
            self.changes(second.cursor)

    @rule(cursor=cursors)
    def changes(self, cursor):
        self.check_touched(*self.both("changes", cursor))

    @precondition(lambda self: self.tables[1].cursors())
    @rule(place=places)
    def drop_cursor(self, place):
        names = self.tables[1].cursors()
        self.both("drop_cursor", names[place % len(names)])

    @rule()
    def clear(self):
        self.close_cuts()
        self.both("clear")

    def check_touched(self, first, second):
        assert first.full == second.full
        assert_same_bits(first.keys, second.keys)
        assert_same_bits(first.tombstones, second.tombstones)

    def check_entries(self, first, second, numbers):
        entries, expected = (snapshot.lookup_entry(numbers) for snapshot in (first, second))
        assert_same_bits(entries.present, expected.present)
        assert_equal_rows(entries.rows, expected.rows)
        assert_same_bits(*(snapshot.lookup(numbers) for snapshot in (first, second)))

    def close_cuts(self):
        while self.cuts:
            self.close(0, True, False)

    def teardown(self):
        self.close_cuts()
        first, second = self.both("cursors")
        assert first == second
        super().teardown()
