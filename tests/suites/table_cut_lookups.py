"""Weights at a cut: the bits of the lookup that the table would have given at its moment."""

import itertools
import threading

import pytest
import torch

from monolith.table import (
    Expiry,
    FixedR8,
    MinCount,
    OneBit,
    Segment,
    Table,
    TableConfig,
    Uniform,
)
from monolith.table.optimizers import SGD, Adagrad, Adam
from tests.suites.table_base import (
    NOW,
    TableCase,
    assert_same_bits,
    column,
    keys,
    random_floats,
    random_keys,
)
from tests.suites.table_concurrency import run_together, times_of, until
from tests.suites.table_cuts import CONFIG, NEW, OLD, VALUES, every_write

ALL = torch.cat([OLD, NEW])
CONFIGS = {
    "fp16": [Segment(4, Adagrad(0.5), precision="fp16")],
    "bf16": [Segment(4, Adam(0.1), precision="bf16")],
    "segments": [Segment(1, SGD(0.5)), Segment(3, Adagrad(0.5), precision="bf16")],
    "fixed_r8": [Segment(4, SGD(0.5), view=FixedR8(0.7))],
    "one_bit": [Segment(4, SGD(0.5), view=OneBit(step_size=2))],
    "views": [
        Segment(1, SGD(0.5), view=OneBit(step_size=2, amplitude=3.0), precision="fp16"),
        Segment(2, Adagrad(0.5)),
        Segment(1, SGD(0.5), view=FixedR8(1.0)),
    ],
}
SERVING = {
    "fp32": [Segment(4)],
    "bf16": [Segment(3, precision="bf16"), Segment(1)],
    "fixed_r8": [Segment(4, view=FixedR8(0.7))],
    "one_bit": [Segment(1), Segment(3, view=OneBit())],
}


def of(configs):
    return pytest.mark.parametrize("segments", configs.values(), ids=list(configs))


class CutLookups(TableCase):
    def stepped(self, config=CONFIG):
        table = self.build(config)
        table.apply_gradients(OLD, VALUES, now=NOW - 5)
        return table

    @every_write
    def test_weights_of_a_cut_are_as_they_were(self, write):
        table = self.stepped()
        before = table.lookup(ALL, missing="zeros")
        with table.cut() as snapshot:
            write(table)
            assert_same_bits(snapshot.lookup(ALL), before)

    @every_write
    def test_keys_may_repeat_in_any_order(self, write):
        table, places = self.stepped(), torch.randint(len(ALL), (2000,))
        with table.cut() as snapshot:
            write(table)
            in_order, weights = (snapshot.lookup(k) for k in (ALL, ALL[places]))
        assert_same_bits(weights, in_order[places])

    @of(CONFIGS)
    def test_weights_are_those_of_a_lookup_at_the_step_of_the_cut(self, segments):
        table = self.stepped(TableConfig("user", segments))
        for _ in range(5):
            table.apply_gradients(OLD, VALUES)
        before = table.lookup(ALL, missing="zeros", step=table.num_update_calls)
        at_three = table.lookup(ALL, missing="zeros", step=3000)
        with table.cut() as snapshot:
            assert_same_bits(snapshot.lookup(ALL), before)
            for _ in range(3):
                table.apply_gradients(ALL, torch.ones(600, 4))
            assert_same_bits(snapshot.lookup(ALL), before)
            assert_same_bits(snapshot.lookup(ALL, step=3000), at_three)
        assert torch.isfinite(before).all()

    def test_the_scale_of_a_one_bit_view_is_that_of_the_cut(self):
        table = self.build(TableConfig("user", Segment(4, SGD(0.5), view=OneBit(step_size=1))))
        for _ in range(50):
            table.apply_gradients(OLD, VALUES)
        at_50, at_51 = (table.lookup(OLD, missing="zeros", step=step) for step in (50, 51))
        with table.cut() as snapshot:
            table.apply_gradients(NEW, VALUES)
            assert_same_bits(snapshot.lookup(OLD), at_50)
            assert_same_bits(snapshot.lookup(OLD, step=51), at_51)
        assert not torch.equal(at_50, at_51)

    @of(SERVING)
    def test_weights_of_a_serving_table_are_decoded(self, segments):
        table = self.build(TableConfig("user", segments, kind="serving"))
        table.assign(OLD, VALUES)
        before = table.lookup(ALL)
        with table.cut() as snapshot:
            table.assign(ALL, torch.ones(600, 4))
            assert_same_bits(snapshot.lookup(ALL), before)

    def test_a_missing_key_reads_zeros_whatever_its_initial_row(self):
        table = self.table(2, initializer=Uniform(1, 2))
        with table.cut() as snapshot:
            table.lookup_or_insert(keys(1))
            assert snapshot.lookup(keys(1, 2)).tolist() == [[0.0, 0.0]] * 2

    def test_expired_rows_read_as_they_are_until_they_are_evicted(self):
        table = self.table(expiry=Expiry(1))
        table.assign(keys(1, 2), column(1, 2), now=NOW)
        table.assign(keys(3), column(3), now=NOW + 3 * 86_400)
        with table.cut() as snapshot:
            assert snapshot.lookup(keys(1, 2, 3)).flatten().tolist() == [1, 2, 3]
            table.evict(NOW + 3 * 86_400)
            assert snapshot.lookup(keys(1, 2, 3)).flatten().tolist() == [1, 2, 3]
        with table.cut() as snapshot:
            before = table.lookup(keys(1, 2, 3), missing="zeros")
            assert_same_bits(snapshot.lookup(keys(1, 2, 3)), before)

    def test_keys_that_were_not_admitted_at_the_cut_read_zeros(self):
        table = self.table(admission=MinCount(1))
        table.assign(keys(1), column(1))
        with table.cut() as snapshot:
            table.assign(keys(1), column(1))
            assert table.contains(keys(1)).all()
            assert snapshot.lookup(keys(1)).tolist() == [[0.0]]

    def test_no_keys_have_no_weights(self):
        with self.stepped().cut() as snapshot:
            assert snapshot.lookup(keys()).shape == (0, 4)

    def test_four_open_cuts_have_weights_of_their_own(self):
        table, snapshots = self.table(), []
        for i in range(4):
            table.assign(keys(1, i + 10), column(i + 1, i + 1))
            snapshots.append(table.cut())
        table.erase(keys(1, 10, 11))
        for i, snapshot in enumerate(snapshots):
            weights = snapshot.lookup(keys(1, 10, 11, 12, 13)).flatten().tolist()
            assert weights == [i + 1, *(j + 1 if j <= i else 0 for j in range(4))]
            snapshot.close()

    def test_callers_may_write_into_the_weights(self):
        table = self.stepped()
        with table.cut() as snapshot:
            before = snapshot.lookup(OLD).clone()
            snapshot.lookup(OLD).fill_(7)
            assert_same_bits(snapshot.lookup(OLD), before)

    def test_weights_are_those_of_a_copy_while_writers_go_on(self):
        table, numbers, stop = self.build(CONFIG), random_keys(900), threading.Event()
        turns = itertools.count()
        table.assign(numbers, random_floats(900, 4))

        def write():
            turn = next(turns)
            part = numbers[turn % 7 :: 3].contiguous()
            table.apply_gradients(part, torch.full((len(part), 4), float(turn)))
            table.erase(numbers[turn % 11 :: 5].contiguous())
            table.lookup_or_insert(torch.arange(60) + 60 * turn)

        def cut():
            with table.cut() as snapshot:
                first = snapshot.lookup(numbers)
                copy = Table(CONFIG)
                for chunk in snapshot.export():
                    copy.import_rows(chunk)
                assert_same_bits(snapshot.lookup(numbers), copy.lookup(numbers, missing="zeros"))
                assert_same_bits(snapshot.lookup(numbers), first)
                copy.close()

        run_together(times_of(12, stop, cut), until(stop, write), until(stop, write))
