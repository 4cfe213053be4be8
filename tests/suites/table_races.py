"""Races between verbs that replace, remove and copy rows, and what a reader may see of them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from monolith.table import Rows, Uniform
from monolith.table.optimizers import Adagrad
from tests.suites.table_base import (
    TableCase,
    assert_same_rows,
    exported,
    random_floats,
    random_keys,
)
from tests.suites.table_concurrency import run_together, times_of, until

TIME = 500
"""Time of every row that a test below writes."""


def rows_of(numbers, weight, norm=3.0):
    """Whole rows of a table of dim 4 with Adagrad, all alike."""
    n = len(numbers)
    columns = {"weight/0": torch.full((n, 4), weight), "state/0/norm": torch.full((n, 4), norm)}
    return Rows(numbers, torch.full((n,), TIME), columns)


def turn_over(table, num_rows, num_turns):
    """Replace all rows of a table of dim 1 by others, again and again, and read them."""
    first = torch.arange(num_rows)
    table.assign(first, torch.zeros(num_rows, 1))
    for turn in range(1, num_turns + 1):
        old = first + (turn - 1) * num_rows
        for gone in old.split(num_rows // 8):
            table.erase(gone)
            table.assign(gone + num_rows, torch.full((len(gone), 1), float(turn)))
        assert (table.lookup(old + num_rows) == turn).all()
        assert not table.contains(old).any()
        assert len(table) == num_rows


class Races(TableCase):
    def adagrad_table(self):
        return self.table(4, optimizer=Adagrad(0.5), initializer=Uniform(-1, 1))

    def test_clear_beside_readers_and_writers(self):
        table, numbers, stop = self.table(4), random_keys(2000), threading.Event()

        def read():
            rows = table.lookup(numbers)
            assert ((rows == 0) | (rows == 1)).all()
            assert (rows == rows[:, :1]).all()

        run_together(
            times_of(30, stop, table.clear),
            until(stop, lambda: table.assign(numbers, torch.ones(2000, 4))),
            until(stop, read),
            until(stop, lambda: exported(table, chunk_rows=300)),
        )
        present = table.contains(numbers)
        assert len(table) == int(present.sum()) == len(exported(table))
        table.clear()
        stats = table.stats()
        assert stats["num_inserted"] == stats["num_erased"]

    def test_import_reinitialize_and_insert_at_once(self):
        table, numbers = self.adagrad_table(), random_keys(2000)
        initial = self.adagrad_table().lookup(numbers)
        imported = rows_of(numbers, 7.0)
        actions = (
            lambda: table.import_rows(imported),
            lambda: table.reinitialize(numbers, now=TIME),
            lambda: table.lookup_or_insert(numbers, now=TIME),
        )
        run_together(*(times_of(15, threading.Event(), job) for job in actions * 2))
        rows = table.lookup_entry(numbers).rows
        is_imported = (rows.columns["weight/0"] == 7).all(1)
        is_initial = (rows.columns["weight/0"] == initial).all(1)
        assert (is_imported ^ is_initial).all()
        norms = torch.where(is_imported, 3.0, 0.1)[:, None].expand(-1, 4)
        assert torch.equal(rows.columns["state/0/norm"], norms)
        assert (rows.times == TIME).all()
        assert len(table) == table.stats()["num_inserted"] == 2000

    def test_ten_threads_copy_the_partitions_of_a_table(self):
        source, target = self.adagrad_table(), self.adagrad_table()
        source.apply_gradients(random_keys(26_000), random_floats(26_000, 4), now=TIME)
        bounds = [4096 * i // 10 for i in range(11)]

        def copy(i):
            for chunk in source.export(partitions=range(*bounds[i : i + 2]), chunk_rows=500):
                target.import_rows(chunk)

        with ThreadPoolExecutor(10) as threads:
            list(threads.map(copy, range(10)))
        assert len(target) == 26_000
        assert_same_rows(source, target)

    @pytest.mark.parametrize("verb", ["assign", "import_rows"])
    def test_reader_sees_nothing_that_nobody_wrote(self, verb):
        table, numbers, stop = self.adagrad_table(), random_keys(5000), threading.Event()
        few, imported = numbers[::10].contiguous(), rows_of(numbers, 7.0, norm=0.1)

        def write():
            if verb == "assign":
                table.assign(numbers, imported.columns["weight/0"], now=TIME)
            else:
                table.import_rows(imported)
            table.erase(numbers)

        def read():
            weights = table.lookup(few, missing="zeros")
            assert ((weights == 0) | (weights == 7)).all()
            entries = table.lookup_entry(few)
            assert (entries.rows.columns["weight/0"] == entries.present[:, None] * 7.0).all()
            assert (entries.rows.times == entries.present * TIME).all()

        run_together(times_of(25, stop, write), until(stop, read), until(stop, read))

    @pytest.mark.parametrize("verb", ["assign", "import_rows"])
    def test_export_holds_nothing_that_nobody_wrote(self, verb):
        table, numbers, stop = self.adagrad_table(), random_keys(5000), threading.Event()
        imported = rows_of(numbers, 7.0, norm=0.1)

        def write():
            if verb == "assign":
                table.assign(numbers, imported.columns["weight/0"], now=TIME)
            else:
                table.import_rows(imported)
            table.clear()

        def export():
            for chunk in table.export(chunk_rows=700):
                assert (chunk.columns["weight/0"] == 7).all()
                assert (chunk.columns["state/0/norm"] == torch.tensor(0.1)).all()
                assert (chunk.times == TIME).all()

        run_together(times_of(25, stop, write), until(stop, export))

    def test_number_of_rows_is_off_by_the_keys_of_running_calls_at_most(self):
        table, numbers, stop = self.table(2), torch.arange(20_000), threading.Event()
        erased = numbers[:5000]
        table.lookup_or_insert(numbers)

        def watch():  # 15,000 to 20,000 rows; of 5,000 the insert or removal may not be counted yet
            for number in (len(table), table.stats()["num_rows"]):
                assert 10_000 <= number <= 25_000

        run_together(
            times_of(25, stop, lambda: table.lookup_or_insert(numbers)),
            until(stop, lambda: table.erase(erased)),
            until(stop, watch),
        )
        assert len(table) == int(table.contains(numbers).sum())

    def test_lookups_stay_right_over_twenty_turnovers(self):
        turn_over(self.table(), num_rows=20_000, num_turns=20)
