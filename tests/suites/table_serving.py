"""Serving tables: encoded weights only, zeros for missing keys, no gradients."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.table import FixedR8, OneBit, Rows, Segment, TableConfig, Uniform
from monolith.table.codecs import decode, encode
from monolith.table.optimizers import Adagrad
from tests.suites.table_base import (
    TableCase,
    assert_equal_rows,
    assert_same_bits,
    column,
    exported,
    floats,
    keys,
    random_floats,
    random_keys,
    read,
    refuses,
    times,
)

STORAGES = {
    "fp32": {},
    "fp16": {"precision": "fp16"},
    "bf16": {"precision": "bf16"},
    "fixed_r8": {"view": FixedR8(2.0)},
    "one_bit": {"view": OneBit(amplitude=0.25)},
}
every_storage = pytest.mark.parametrize("options", STORAGES.values(), ids=STORAGES)


def storage_of(options):
    return options.get("view") or options.get("precision", "fp32")


class Serving(TableCase):
    def serving(self, dim=1, skip_zero=False, **options):
        segment = Segment(dim, **options)
        return self.build(TableConfig("user", segment, kind="serving", skip_zero=skip_zero))

    @every_storage
    def test_assign_encodes(self, options):
        table, values = self.serving(11, **options), random_floats(200, 11)
        table.assign(random_keys(200), values, now=5)
        expected = decode(encode(values, storage_of(options)), storage_of(options), 11)
        assert_same_bits(table.lookup(random_keys(200)), expected)
        assert times(table, *random_keys(200)[:3].tolist()) == [5, 5, 5]

    @every_storage
    def test_missing_keys_read_zeros(self, options):
        table = self.serving(3, initializer=Uniform(1, 2), **options)
        for missing in ("initial", "zeros"):
            assert table.lookup(keys(1, 2), missing=missing).tolist() == [[0.0] * 3] * 2

    @every_storage
    def test_assign_add_starts_from_zero_and_decodes_before_it_adds(self, options):
        table, storage = self.serving(5, **options), storage_of(options)
        total = torch.zeros(40, 5)
        for seed in range(3):
            values = random_floats(40, 5, seed=seed)
            table.assign_add(torch.arange(40), values)
            total = decode(encode(total + values, storage), storage, 5)
            assert_same_bits(table.lookup(torch.arange(40)), total)

    @every_storage
    def test_export_gives_codes_and_import_takes_them(self, options):
        table, other = self.serving(9, **options), self.serving(9, **options)
        values = random_floats(30, 9)
        table.assign(torch.arange(30), values, now=7)
        rows = exported(table)
        assert list(rows.columns) == ["weight/0"]
        assert_same_bits(rows.columns["weight/0"], encode(values[rows.keys], storage_of(options)))
        other.import_rows(rows)
        assert_equal_rows(exported(other), rows)
        assert_equal_rows(other.lookup_entry(rows.keys).rows, rows)

    @every_storage
    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_import_encodes_the_weights_of_a_training_table(self, options, precision):
        config = TableConfig("user", Segment(4, Adagrad(0.5), precision=precision))
        training, table = self.build(config), self.serving(4, **options)
        training.apply_gradients(random_keys(50), random_floats(50, 4), now=99)
        rows = exported(training)
        table.import_rows(rows.weights_only())
        storage = storage_of(options)
        expected = decode(encode(rows.columns["weight/0"].float(), storage), storage, 4)
        assert_same_bits(table.lookup(rows.keys), expected)
        assert times(table, int(rows.keys[0])) == [99]

    def test_a_training_config_makes_its_serving_config(self):
        config = TableConfig("user", [Segment(2, precision="fp16"), Segment(9, view=OneBit())])
        table = self.build(dataclasses.replace(config, kind="serving"))
        table.assign(keys(1), torch.ones(1, 11))
        dtypes = {name: c.dtype for name, c in exported(table).columns.items()}
        assert dtypes == {"weight/0": torch.float16, "weight/1": torch.uint8}
        assert exported(table).columns["weight/1"].tolist() == [[255, 1]]

    def test_vectors_of_storage(self):
        table = self.serving(3, precision="fp32")
        table.assign(keys(1), floats([0.1, 0.2, 0.3]))
        assert_same_bits(table.lookup(keys(1)), floats([0.1, 0.2, 0.3]))
        table = self.serving(3, precision="fp16")
        table.assign(keys(1), floats([0.1, 0.2, 10000.0]))
        assert table.lookup(keys(1)).tolist() == [[0.0999755859375, 0.199951171875, 10000.0]]

    @pytest.mark.parametrize("verb", ["apply_gradients", "lookup_or_insert", "reinitialize"])
    def test_verbs_of_training_are_refused(self, verb):
        table = self.serving(1)
        text = f"[Table.{verb}] expected a training table, got a serving one (table 'user')"
        values = [column(1)] if verb == "apply_gradients" else []
        with refuses(table, FailedPreconditionError, text):
            getattr(table, verb)(keys(1), *values)

    def test_import_refuses_state(self):
        table = self.serving(1)
        columns = {"weight/0": column(1), "state/0/norm": column(1)}
        text = (
            "[Table.import_rows] expected columns ['weight/0'], "
            "got ['state/0/norm', 'weight/0'] (table 'user')"
        )
        with refuses(table, ValueError, text):
            table.import_rows(Rows(keys(1), keys(1), columns))

    @pytest.mark.parametrize("bad", [torch.zeros(1, 2), torch.zeros(1, 1, dtype=torch.float64)])
    def test_import_refuses_weights_it_cannot_encode(self, bad):
        table = self.serving(1, view=FixedR8())
        dtype = str(bad.dtype).removeprefix("torch.")
        text = (
            f"[Table.import_rows] expected weight/0 of dtype int8, got {dtype} (table 'user'); "
            "cast with .to(torch.int8)"
        )
        with refuses(table, TypeError, text):
            table.import_rows(Rows(keys(1), keys(1), {"weight/0": bad}))


class SkipZero(TableCase):
    def skipping(self, dim=1, **options):
        segment = Segment(dim, **options)
        return self.build(TableConfig("user", segment, kind="serving", skip_zero=True))

    def test_assign_and_import_leave_zero_rows_out(self):
        table, restored = self.skipping(), self.skipping()
        numbers = torch.arange(3000)
        values = (numbers % 2).float()[:, None]
        parts = [numbers[i::10].contiguous() for i in range(10)]
        with ThreadPoolExecutor(10) as pool:
            list(pool.map(lambda part: table.assign(part, values[part], num_threads=1), parts))
        restored.import_rows(Rows(numbers, numbers, {"weight/0": values}))
        for t in (table, restored):
            assert t.contains(numbers).tolist() == [bool(i % 2) for i in range(3000)]
            assert t.lookup(numbers)[:, 0].tolist() == values[:, 0].tolist()

    def test_a_zero_row_removes_the_one_that_was_there(self):
        table = self.skipping(2)
        table.assign(keys(1, 2), floats([1.0, 2.0], [3.0, 4.0]))
        table.assign(keys(1), floats([0.0, -0.0]))
        table.import_rows(Rows(keys(2), keys(9), {"weight/0": floats([0.0, 0.0])}))
        assert len(table) == 0

    def test_the_last_of_equal_keys_decides(self):
        table = self.skipping()
        table.assign(keys(1, 2, 1, 2), column(0, 5, 6, 0))
        assert table.contains(keys(1, 2)).tolist() == [True, False]
        assert read(table, 1, 2) == [6.0, 0.0]

    def test_codes_count_by_what_they_decode_to(self):
        for options, kept in (({"view": FixedR8()}, 1), ({"view": OneBit()}, 2)):
            table, rows = self.skipping(2, **options), floats([0.0, 0.0], [0.5, 0.0])
            codes = encode(rows, options["view"])
            table.import_rows(Rows(keys(1, 2), keys(3, 4), {"weight/0": codes}))
            assert len(table) == kept

    def test_without_the_option_zero_rows_are_kept(self):
        table = self.build(TableConfig("user", Segment(1), kind="serving"))
        table.assign(keys(1), column(0))
        assert table.contains(keys(1)).tolist() == [True]

    def test_one_weight_above_zero_keeps_the_row(self):
        table = self.skipping(3)
        table.assign(keys(1), floats([0.0, 0.0, 1e-30]))
        assert len(table) == 1
