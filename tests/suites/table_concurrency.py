"""Any two verbs from any two threads: results that no interleaving may change."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.table import Segment, TableConfig
from monolith.table.optimizers import SGD, Adagrad
from tests.suites.table_base import (
    NOW,
    TableCase,
    assert_same_bits,
    assert_same_rows,
    column,
    exported,
    keys,
    random_floats,
    random_keys,
    read,
)


def run_together(*jobs):
    """Run the jobs on one thread each, started at once; the first error is raised here."""
    barrier = threading.Barrier(len(jobs))

    def start(job):
        barrier.wait(timeout=60)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result(timeout=120) for future in [pool.submit(start, j) for j in jobs]]


def until(stop, job):
    """A job that repeats another one, at least once, until the event."""

    def repeat():
        job()
        while not stop.is_set():
            job()

    return repeat


def times_of(count, stop, job):
    """A job that repeats another one so many times, then sets the event, also after an error."""

    def repeat():
        try:
            for _ in range(count):
                job()
        finally:
            stop.set()

    return repeat


class Concurrency(TableCase):
    def test_adds_and_steps_of_a_hundred_threads_on_their_keys(self):
        table = self.table(optimizer=SGD(0.01))

        def job(i):
            table.assign_add(keys(i), column(i))
            table.apply_gradients(keys(i), column(-200 * i))

        run_together(*(lambda i=i: job(i) for i in range(100)))
        assert read(table, *range(100)) == pytest.approx([3 * i for i in range(100)])

    def test_adds_and_steps_on_one_key_lose_nothing(self):
        table = self.table(optimizer=SGD(1))

        def job():
            for _ in range(50):
                table.assign_add(keys(1), column(1))
                table.apply_gradients(keys(1), column(-2))

        run_together(*[job] * 8)
        assert read(table, 1) == [8 * 50 * 3]

    def test_batches_over_shared_keys_lose_nothing(self):
        table = self.table(4, optimizer=SGD(1))
        numbers = random_keys(3000)

        def job(i):
            order = torch.randperm(3000, generator=torch.Generator().manual_seed(i))
            for part in numbers[order].split(500):
                table.apply_gradients(part, torch.full((len(part), 4), -1.0))

        run_together(*(lambda i=i: job(i) for i in range(6)))
        assert_same_bits(table.lookup(numbers), torch.full((3000, 4), 6.0))

    def test_every_key_is_inserted_by_exactly_one_thread(self):
        table = self.table()
        numbers = random_keys(5000)

        def job():
            applied = [
                table.apply_gradients(part, torch.ones(len(part), 1)) for part in numbers.split(250)
            ]
            return sum(result.num_inserted for result in applied)

        assert sum(run_together(*[job] * 6)) == 5000
        assert len(table) == 5000

    def test_threads_with_keys_of_their_own_equal_one_thread(self):
        segments = [Segment(3, SGD(0.5)), Segment(5, Adagrad(0.5))]
        together, alone = (self.build(TableConfig("user", segments)) for _ in range(2))
        numbers, grads = random_keys(4000).split(1000), random_floats(1000, 8)

        def job(table, part):
            for scale in (1.0, 2.0):
                table.apply_gradients(part, grads * scale)
                table.erase(part[::7].contiguous())

        run_together(*(lambda part=part: job(together, part) for part in numbers))
        for part in numbers:
            job(alone, part)
        assert_same_rows(together, alone)

    def test_reader_sees_whole_rows(self):
        table, numbers, stop = self.table(64), torch.arange(200), threading.Event()
        table.assign(numbers, torch.zeros(200, 64))

        def watch():
            rows = table.lookup(numbers)
            assert (rows == rows[:, :1]).all()

        write = times_of(60, stop, lambda: table.assign_add(numbers, torch.ones(200, 64)))
        run_together(write, until(stop, watch), until(stop, watch))
        assert (table.lookup(numbers) == 60).all()

    def test_readers_find_every_row_while_the_table_grows(self):
        table, stop = self.table(2), threading.Event()
        numbers, parts = random_keys(20_000), iter(random_keys(20_000).split(500))
        num_done = [0]

        def write():
            table.assign(next(parts), torch.ones(500, 2))
            num_done[0] += 500

        def watch():
            seen = num_done[0]
            assert table.contains(numbers[:seen]).all()
            assert (table.lookup(numbers[:seen]) == 1).all()

        run_together(times_of(40, stop, write), until(stop, watch), until(stop, watch))
        watch()

    def test_erase_and_insert_at_once_leave_a_sound_table(self):
        table = self.table(3)
        numbers = random_keys(2000)

        def insert():
            for _ in range(20):
                table.assign(numbers, torch.ones(2000, 3))

        def erase():
            return sum(
                int(table.erase(part).sum()) for _ in range(20) for part in numbers.split(99)
            )

        run_together(insert, insert, erase, erase)
        present = table.contains(numbers)
        assert len(table) == int(present.sum()) == len(exported(table))
        assert (table.lookup(numbers) == present[:, None].float()).all()
        stats = table.stats()
        assert stats["num_inserted"] - stats["num_erased"] == len(table)

    @pytest.mark.parametrize("chunk_rows", [100, 65_536])
    def test_export_beside_writers_gives_whole_rows_once(self, chunk_rows):
        table = self.table(16)
        kept, churned = random_keys(3000).split(1500)
        table.assign(kept, torch.ones(1500, 16))
        stop = threading.Event()

        def churn():
            table.assign(churned, torch.full((1500, 16), 2.0))
            table.erase(churned)

        def export():
            rows = exported(table, chunk_rows=chunk_rows)
            weights = rows.columns["weight/0"]
            assert (weights == weights[:, :1]).all()
            assert len(set(rows.keys.tolist())) == len(rows)
            assert set(kept.tolist()) <= set(rows.keys.tolist())

        run_together(until(stop, churn), times_of(20, stop, export))

    def test_clamped_times_of_many_threads_are_all_counted(self):
        table = self.table()

        def job():
            for _ in range(300):
                table.reinitialize(keys(1), now=NOW + 5000)

        run_together(*[job] * 8)
        assert table.stats()["num_clamped_times"] == 8 * 300

    def test_close_beside_calls_ends_them_or_refuses_them(self):
        table = self.table(8)
        numbers = random_keys(500)

        def work():
            while True:
                table.apply_gradients(numbers, torch.ones(500, 8))
                table.lookup(numbers)

        def work_until_closed():
            with pytest.raises(FailedPreconditionError, match="expected an open table"):
                work()

        run_together(
            work_until_closed,
            work_until_closed,
            lambda: (table.lookup_or_insert(numbers), table.close()),
        )
