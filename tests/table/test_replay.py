"""Replay proofs: what a table did on many threads, repeated on the reference table, gives equal
bits at every cut, in every save, and names the keys that a cursor saw."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from monolith.table import BagGradients, Bags, Budget, Expiry, Rows, Segment, Table, TableConfig
from monolith.table.disk import load_table, save_tables
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from tests.suites.table_base import NOW, assert_equal_rows, exported, random_keys
from tests.suites.table_concurrency import run_together
from tests.suites.table_cut_changes import apply_delta

pytestmark = pytest.mark.thorough

SEGMENTS = {
    "fp32": [Segment(3, SGD(0.5)), Segment(2, Adagrad(0.5))],
    "fp16": [Segment(3, Adagrad(0.5), precision="fp16"), Segment(2, SGD(0.1), precision="bf16")],
}
POOL = random_keys(400)


def config_of(precision, **options):
    return TableConfig("user", SEGMENTS[precision], **options)


def rows_like(config, numbers, time):
    """Whole rows of the config's table, with values that depend on the time."""
    source = Table(config)
    source.assign(numbers, torch.full((len(numbers), config.dim), float(time % 97)))
    rows = exported(source)
    return Rows(rows.keys, torch.full((len(rows),), time), rows.columns)


def write(table, draw):
    """One random writing call; now and then of many keys, on several threads."""
    n = draw.choice([1, 20, 20, 200, 1500])
    numbers = POOL[torch.tensor([draw.randrange(len(POOL)) for _ in range(n)])]
    values = torch.tensor([[draw.gauss(0, 1) for _ in range(table.dim)]]).repeat(n, 1)
    now, options = NOW + draw.randrange(1000), {"num_threads": draw.choice([1, 3])}
    match draw.randrange(10):
        case 0:
            table.assign(numbers, values, now=now, **options)
        case 1:
            table.assign_add(numbers, values, now=now, **options)
        case 2:
            table.lookup_or_insert(numbers, now=now, **options)
        case 3:
            table.reinitialize(numbers[:50], now=now)
        case 4:
            table.erase(numbers[:50])
        case 5:
            table.import_rows(rows_like(table.config, numbers[:50].unique(), now))
        case 6 if table.config.expiry:
            table.evict(now + 86_000)
        case 7:
            bags = Bags(numbers, torch.tensor([0, n // 3, n]), "mean")
            queue = [BagGradients(bags, values[:1].repeat(2, 1))] * 2
            table.apply_bag_gradients(queue, step=draw.randrange(9), now=now, **options)
        case _:
            table.apply_gradients(numbers, values, step=draw.randrange(9), now=now, **options)


@dataclass
class Run:
    """A table that several threads write, and what was seen of it on the way."""

    config: TableConfig
    record: Record = field(default_factory=Record)
    seen: list[tuple[int, Rows]] = field(default_factory=list)
    reads: list[set[int]] = field(default_factory=list)

    def __post_init__(self):
        self.table = Table(self.config, clock=lambda: NOW, record=self.record)
        self.table.changes("reader")
        with self.table.cut(cursor="deltas") as snapshot:
            assert snapshot.changes().full
            self.rows = self.table._empty_rows(0)
        self.stop = threading.Event()

    def writer(self, seed, num_calls):
        draw = random.Random(seed)

        def work():
            try:
                for _ in range(num_calls):
                    write(self.table, draw)
            finally:
                self.stop.set()

        return work

    def until_stopped(self, look: Callable[[], None]):
        def work():
            look()
            while not self.stop.is_set():
                look()

        return work

    def cut(self):
        """The rows of a cut, read twice while writers go on."""
        with self.table.cut() as snapshot:
            rows = exported(snapshot, chunk_rows=37)
            assert len(rows) == len(snapshot)
            self.seen.append((snapshot.num_recorded, rows))
            assert_equal_rows(exported(snapshot), rows) if len(rows) else None

    def delta(self):
        """The rows of the previous cut, its changes, and the rows of all at this cut."""
        with self.table.cut(cursor="deltas") as snapshot:
            self.rows = apply_delta(self.rows, snapshot)
            self.seen.append((snapshot.num_recorded, self.rows))
            if len(snapshot):
                assert_equal_rows(exported(snapshot), self.rows)

    def save(self, folder):
        """The rows of a save, loaded again; the cut of the save is one of its table's."""
        cuts, make, here = [], self.table.cut, threading.get_ident()

        def cut(**options):
            snapshot = make(**options)
            if threading.get_ident() == here:  # not one of the other threads' cuts
                cuts.append(snapshot)
            return snapshot

        self.table.cut = cut
        save_tables(self.table, folder, num_threads=2)
        del self.table.cut
        with load_table(folder) as loaded:
            self.seen.append((cuts[0].num_recorded, exported(loaded)))

    def read(self):
        touched = self.table.changes("reader")
        assert not touched.full
        changed, gone = set(touched.keys.tolist()), set(touched.tombstones.tolist())
        assert not changed & gone
        self.reads.append(changed | gone)

    def check_rows(self):
        """The record, replayed up to each moment, gives the rows that were seen there."""
        self.seen.append((len(self.record), exported(self.table)))
        reference, done = ReferenceTable(self.config, clock=lambda: NOW), 0
        for number, rows in sorted(self.seen, key=lambda moment: moment[0]):
            self.record.replay(reference, done, number)
            done = number
            assert len(reference) == len(rows)
            if len(rows):
                assert_equal_rows(exported(reference), rows)

    def check_reads(self):
        """The union of the reads is the union of the keys that the record says changed."""
        self.read()
        keys = set(self.record._events()[:, 1].tolist())
        assert set().union(*self.reads) == keys


def prove(precision, folder, num_calls, num_writers=2, **options):
    run = Run(config_of(precision, **options))
    writers = [run.writer(seed, num_calls) for seed in range(num_writers)]
    run_together(
        *writers,
        run.until_stopped(run.cut),
        run.until_stopped(run.delta),
        run.until_stopped(lambda: run.save(folder)),
        run.until_stopped(run.read),
    )
    run.delta()
    run.check_rows()
    run.check_reads()
    assert len(run.seen) > 3


@pytest.mark.parametrize("precision", SEGMENTS)
def test_cuts_and_saves_beside_writers_equal_the_replay(precision, tmp_path):
    prove(precision, tmp_path, num_calls=40)


def test_evictions_are_replayed(tmp_path):
    prove("fp32", tmp_path, num_calls=40, expiry=Expiry(1))


@pytest.mark.slow
@pytest.mark.parametrize("precision", SEGMENTS)
def test_long_runs_equal_the_replay(precision, tmp_path):
    prove(precision, tmp_path, num_calls=400, num_writers=4, expiry=Expiry(1))


def test_rows_that_go_for_the_budget_are_replayed():
    config = TableConfig("user", Segment(1), budget=Budget(40_000, "evict_oldest"))
    record = Record()
    table, reference = Table(config, record=record), ReferenceTable(TableConfig("user", Segment(1)))
    for i in range(3):
        numbers = torch.arange(5000) + 2500 * i
        table.assign(numbers, torch.full((5000, 1), float(i)), num_threads=2)
    assert table.stats()["num_evicted_for_budget"] > 0
    record.replay(reference)
    assert reference.lookup_entry(exported(table).keys).present.all()
    assert len(reference) == len(table)
