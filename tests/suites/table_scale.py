"""Many rows and chosen keys, compared with the reference table bit for bit."""

import numpy as np
import pytest
import torch

from monolith.table import Segment, TableConfig, Uniform
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.reference import ReferenceTable
from tests.suites.table_base import (
    NOW,
    TableCase,
    assert_equal_rows,
    assert_same_bits,
    assert_same_rows,
    exported,
    keys_of_hashes,
    random_floats,
    random_keys,
)

CONFIG = TableConfig("user", [Segment(3, SGD(0.5)), Segment(5, Adagrad(0.5), Uniform(-1, 1))])
MANY = 65_536


class Scale(TableCase):
    def pair(self, config=CONFIG):
        """A table of this implementation and the reference, to be treated alike."""
        return self.build(config), ReferenceTable(config, clock=lambda: NOW)

    def test_growth_to_a_hundred_thousand_rows(self):
        tables = self.pair()
        numbers, grads = random_keys(100_000), random_floats(100_000, 8)
        for table in tables:
            for part, part_grads in zip(numbers.split(7000), grads.split(7000), strict=True):
                table.apply_gradients(part, part_grads)
        assert len(tables[0]) == 100_000
        assert_same_bits(tables[0].lookup(numbers), tables[1].lookup(numbers))
        assert_same_rows(*tables)

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        "n", [0, 1, 4, 5, 11, 12, 13, 24, 25, 36, 37, 48, 49, 4095, 4096, MANY]
    )
    def test_batch_size_and_threads_do_not_change_results(self, n):
        numbers = random_keys(n)[torch.arange(n) % max(1, n * 2 // 3)]  # a third are duplicates
        grads = random_floats(n, 8)

        def write(table, num_threads):
            table.lookup_or_insert(numbers[::2].contiguous(), num_threads=num_threads)
            table.apply_gradients(numbers, grads, num_threads=num_threads)
            table.assign_add(numbers, grads, num_threads=num_threads)
            return table.lookup(numbers, num_threads=num_threads)

        reference = ReferenceTable(CONFIG, clock=lambda: NOW)
        weights, rows = write(reference, 1), exported(reference)
        for num_threads in (1, 2, 3):
            table = self.build(CONFIG)
            assert_same_bits(write(table, num_threads), weights)
            assert len(table) == len(rows)
            assert_equal_rows(exported(table), rows)

    @pytest.mark.parametrize("num_threads", [1, 2, 3])
    def test_one_key_many_times_is_summed_in_order(self, num_threads):
        tables = self.pair()
        numbers = torch.arange(20_000) % 3
        for table in tables:
            table.apply_gradients(numbers, random_floats(20_000, 8), num_threads=num_threads)
            table.assign(numbers[:9_999], random_floats(9_999, 8), num_threads=num_threads)
        assert_same_rows(*tables)

    @pytest.mark.parametrize(
        "make_hashes",
        [
            lambda i: (i << np.uint64(32)) | np.uint64(0x12345678),
            lambda i: (np.uint64(0xABCDE) << np.uint64(44)) | i,
            lambda i: (np.uint64(0xABCDE) << np.uint64(44)) | (i << np.uint64(20)),
            lambda i: i,
            lambda i: i << np.uint64(51),
        ],
        ids=["low-32-equal", "top-20-equal", "top-and-low-20-equal", "top-51-zero", "low-51-zero"],
    )
    def test_keys_whose_hashes_collide(self, make_hashes):
        tables = self.pair()
        numbers = keys_of_hashes(make_hashes(np.arange(5000, dtype=np.uint64))).unique()
        grads = random_floats(len(numbers), 8)
        for table in tables:
            table.apply_gradients(numbers, grads)
            table.erase(numbers[::3].contiguous())
            table.apply_gradients(numbers.flip(0), grads)
        assert len(tables[0]) == len(numbers)
        assert_same_rows(*tables)

    def test_colliding_keys_are_told_apart(self):
        hashes = (np.arange(3000, dtype=np.uint64) << np.uint64(32)) | np.uint64(7)
        present, absent = keys_of_hashes(hashes).split(1500)
        table = self.build(CONFIG)
        table.lookup_or_insert(present)
        assert table.contains(present).all()
        assert not table.contains(absent).any()

    def test_erased_rows_come_back_fresh(self):
        tables = self.pair()
        numbers = random_keys(20_000)
        for table in tables:
            table.apply_gradients(numbers, random_floats(20_000, 8))
            assert table.erase(numbers[5000:15_000]).all()
            table.apply_gradients(numbers[:12_000], random_floats(12_000, 8, seed=1))
        assert len(tables[0]) == 17_000
        assert_same_rows(*tables)

    def test_space_of_erased_rows_is_used_again(self):
        table = self.build(CONFIG)
        numbers = random_keys(10_000)
        table.lookup_or_insert(numbers)
        size = table.memory_report()["total_bytes"]
        for _ in range(20):
            table.erase(numbers)
            numbers = numbers + 1
            table.lookup_or_insert(numbers)
        assert table.memory_report()["total_bytes"] <= 1.5 * size

    def test_sequential_keys_have_rows_of_their_own(self):
        tables = self.pair()
        for table in tables:
            table.assign(torch.arange(-20_000, 20_000), random_floats(40_000, 8))
        assert_same_rows(*tables)

    def test_import_of_a_large_export_equals(self):
        table, reference = self.pair()
        reference.apply_gradients(random_keys(30_000), random_floats(30_000, 8))
        for chunk in reference.export(chunk_rows=4096):
            table.import_rows(chunk)
        assert_same_rows(table, reference)
