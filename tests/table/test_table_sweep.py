"""Sweeps that a table owns, under a clock that the test drives."""

import gc
import logging
import threading

import pytest
import torch

from monolith.table import Expiry, Table
from monolith.table.sweep import TableSweep
from tests.suites.table_base import column, keys
from tests.table.disk.cases import plain

HOUR, DAY = 3600, 86_400


class Time:
    def __init__(self):
        self.now = 5 * DAY

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def table(clock):
    with Table(plain(expiry=Expiry(1)), clock=clock) as table:
        table.assign(keys(1, 2), column(1, 1), now=0)
        table.assign(keys(3), column(1), now=DAY)
        yield table


def test_a_sweep_is_due_when_the_clock_has_advanced(table, clock):
    sweep = TableSweep(table, HOUR, clock)
    clock.now += HOUR - 1
    assert (sweep.check(), len(table)) == (None, 3)
    clock.now += 1
    assert (sweep.check(), len(table)) == (2, 1)
    assert sweep.check() is None
    clock.now += HOUR
    assert sweep.check() == 0


def test_a_sweep_counts_the_rows_of_all_its_slices(table, clock):
    sweep = TableSweep(table, HOUR, clock)
    clock.now += HOUR
    table.evict_in_slices = lambda: iter([2, 0, 3])
    assert sweep.check() == 5


def test_the_thread_sweeps_by_itself(table, clock):
    sweep, pause = TableSweep(table, 0.001, clock), threading.Event()
    clock.now += 1
    while len(table) == 3:
        assert not pause.wait(0.001)
    assert sweep.is_running


def test_closing_the_table_ends_the_thread(table, clock):
    sweep = TableSweep(table, HOUR, clock)
    assert sweep.is_running
    table.close()
    assert not sweep.is_running
    clock.now += HOUR
    assert sweep.check() is None
    sweep.close()


def test_a_table_that_nobody_closes_ends_the_thread(clock):
    table = Table(plain(expiry=Expiry(1)), clock=clock)
    sweep = TableSweep(table, HOUR, clock)
    del table
    gc.collect()
    sweep._thread.join(30)
    assert not sweep.is_running


def test_an_error_ends_the_sweep_with_a_log(table, caplog):
    times = iter([0])
    sweep = TableSweep(table, 0.001, times.__next__)
    sweep._thread.join(30)
    assert not sweep.is_running
    assert [(r.levelno, r.message) for r in caplog.records] == [
        (logging.ERROR, "the sweep of table 'user' has ended")
    ]


def test_a_sweep_whose_table_is_closed_meanwhile_stops_between_two_slices(table, clock):
    sweep = TableSweep(table, HOUR, clock)
    clock.now += HOUR
    slices = table.evict_in_slices

    def close_first():
        for number in slices():
            sweep._stop.set()
            yield number
        raise AssertionError("the sweep went on")

    table.evict_in_slices = close_first
    assert sweep.check() is not None


def test_a_pause_outside_its_range_is_refused(table, clock):
    with pytest.raises(ValueError, match=r"\[TableSweep\] expected every_seconds in \(0, .* got 0"):
        TableSweep(table, 0, clock)
    assert torch.equal(table.contains(keys(1, 2, 3)), torch.ones(3, dtype=torch.bool))
