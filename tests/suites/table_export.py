"""export and import_rows: hash order, chunks, partitions, resumption, whole rows."""

import numpy as np
import pytest
import torch

from monolith.table import Rows, Segment, TableConfig, Uniform
from monolith.table.config import NUM_PARTITIONS
from monolith.table.initializers import key_hash, key_hashes, partitions_of
from monolith.table.optimizers import SGD, Adagrad
from tests.suites.table_base import (
    TableCase,
    assert_equal_rows,
    assert_same_rows,
    column,
    exported,
    floats,
    keys,
    keys_of_hashes,
    random_floats,
    random_keys,
    read,
    times,
)

CONFIG = TableConfig("user", [Segment(3, SGD(0.5)), Segment(5, Adagrad(0.5), Uniform(-1, 1))])


class Exports(TableCase):
    def table_of(self, n):
        table = self.build(CONFIG)
        table.apply_gradients(random_keys(n), random_floats(n, 8), now=77)
        return table

    def test_rows_come_in_ascending_order_of_their_hash(self):
        table = self.table_of(1000)
        numbers = exported(table).keys
        assert sorted(numbers.tolist()) == sorted(random_keys(1000).tolist())
        hashes = key_hashes(numbers.numpy())
        assert (hashes[1:] > hashes[:-1]).all()

    def test_export_gives_whole_rows(self):
        table = self.table_of(1000)
        rows = exported(table)
        entries = table.lookup_entry(rows.keys)
        assert entries.present.all()
        assert_equal_rows(rows, entries.rows)
        assert list(rows.columns) == ["weight/0", "weight/1", "state/1/norm"]

    def test_export_of_an_empty_table_has_no_chunk(self):
        assert list(self.table().export()) == []

    @pytest.mark.parametrize("chunk_rows", [1, 7, 999, 1000, 1001, 65536])
    def test_chunks_are_full_except_the_last(self, chunk_rows):
        table = self.table_of(1000)
        sizes = [len(chunk) for chunk in table.export(chunk_rows=chunk_rows)]
        full, rest = divmod(1000, chunk_rows)
        assert sizes == [chunk_rows] * full + [rest] * (rest > 0)
        assert_equal_rows(exported(table, chunk_rows=chunk_rows), exported(table))

    def test_export_resumes_after_a_key(self):
        table = self.table_of(100)
        rows = exported(table)
        for i in (0, 1, 50, 98, 99):
            rest = exported(table, after=int(rows.keys[i]))
            assert rest.keys.tolist() == rows.keys[i + 1 :].tolist()

    def test_export_resumes_after_a_key_that_was_erased(self):
        table = self.table_of(100)
        rows = exported(table)
        table.erase(rows.keys[:50])
        rest = exported(table, after=int(rows.keys[49]))
        assert rest.keys.tolist() == rows.keys[50:].tolist()

    def test_export_of_partitions_gives_their_rows_only(self):
        table = self.table_of(1000)
        rows = exported(table)
        chosen = [5, 4095, 0, 6, 7, 2000, 5]
        part = exported(table, partitions=chosen)
        inside = torch.from_numpy(np.isin(partitions_of(rows.keys.numpy()), chosen))
        assert part.keys.tolist() == rows.keys[inside].tolist()

    def test_partitions_cover_the_table_without_overlap(self):
        table = self.table_of(1000)
        parts = [exported(table, partitions=range(i, i + 512)) for i in range(0, 4096, 512)]
        assert torch.cat([part.keys for part in parts]).equal(exported(table).keys)

    def test_no_partitions_export_nothing(self):
        assert list(self.table_of(10).export(partitions=[])) == []

    def test_export_resumes_within_partitions(self):
        table = self.table_of(1000)
        rows = exported(table, partitions=range(1000, 3000))
        middle = len(rows) // 2
        rest = exported(table, partitions=range(1000, 3000), after=int(rows.keys[middle]))
        assert rest.keys.tolist() == rows.keys[middle + 1 :].tolist()

    def test_first_and_last_hash_of_a_partition_are_inside(self):
        last = (1 << 52) - 1
        edges = [p << 52 | low for p in (0, 1, NUM_PARTITIONS - 1) for low in (0, last)]
        table = self.table()
        table.lookup_or_insert(keys_of_hashes(edges))
        for partition in (0, 1, NUM_PARTITIONS - 1):
            rows = exported(table, partitions=[partition])
            expected = [partition << 52, partition << 52 | last]
            assert [key_hash(key) for key in rows.keys.tolist()] == expected

    def test_rows_inserted_between_chunks_do_not_disturb_the_others(self):
        table = self.table_of(100)
        before = exported(table).keys.tolist()
        chunks = table.export(chunk_rows=10)
        seen = next(chunks).keys.tolist()
        table.lookup_or_insert(random_keys(500, seed=1))
        seen += [key for chunk in chunks for key in chunk.keys.tolist()]
        assert len(seen) == len(set(seen))
        assert set(before) <= set(seen)


class Imports(TableCase):
    def test_imported_table_equals_the_exported_one(self):
        source, target = self.build(CONFIG), self.build(CONFIG)
        source.apply_gradients(random_keys(1000), random_floats(1000, 8))
        for chunk in source.export(chunk_rows=64):
            target.import_rows(chunk)
        assert_same_rows(source, target)

    def test_training_goes_on_equal_after_import(self):
        source, target = self.build(CONFIG), self.build(CONFIG)
        source.apply_gradients(random_keys(500), random_floats(500, 8))
        target.import_rows(exported(source))
        for table in (source, target):
            table.apply_gradients(random_keys(500), random_floats(500, 8, seed=1))
        assert_same_rows(source, target)

    def test_import_replaces_existing_rows(self):
        table = self.table(optimizer=Adagrad(1))
        table.apply_gradients(keys(1, 2), column(5, 6), now=900)
        columns = {"weight/0": column(7), "state/0/norm": column(8)}
        table.import_rows(Rows(keys(1), keys(30), columns))
        row = table.lookup_entry(keys(1)).rows
        assert row.times.tolist() == [30]
        assert row.columns["weight/0"].item() == 7
        assert row.columns["state/0/norm"].item() == 8
        assert len(table) == 2

    def test_import_of_equal_keys_takes_the_last(self):
        table = self.table()
        rows = Rows(keys(1, 2, 1), keys(30, 20, 10), {"weight/0": column(1, 2, 3)})
        table.import_rows(rows)
        assert read(table, 1, 2) == [3, 2]
        assert times(table, 1, 2) == [10, 20]

    def test_import_of_no_rows_changes_nothing(self):
        table = self.table(2)
        table.import_rows(Rows(keys(), keys(), {"weight/0": torch.empty(0, 2)}))
        assert len(table) == 0

    def test_import_of_one_chunk_does_not_need_hash_order(self):
        source, target = self.build(CONFIG), self.build(CONFIG)
        source.lookup_or_insert(random_keys(100))
        rows = exported(source)
        flipped = {name: values.flip(0) for name, values in rows.columns.items()}
        target.import_rows(Rows(rows.keys.flip(0), rows.times.flip(0), flipped))
        assert_same_rows(source, target)

    def test_two_keys_survive_export_in_steps_of_one(self):
        table = self.table(2)
        table.assign(keys(5, -3), floats([2.5, 1], [-0.5, 2]))
        first, second = table.export(chunk_rows=1)
        target = self.table(2)
        for chunk in (first, second):
            target.import_rows(chunk)
        assert target.lookup(keys(5, -3)).tolist() == [[2.5, 1], [-0.5, 2]]
