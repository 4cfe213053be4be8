"""A step of many queues of gradients: those of native tables in one call of the core."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.features.gradients import FeatureQueue, GradientQueue
from monolith.table._checks import check_time, default_threads
from monolith.table.base import BaseTable
from monolith.table.native import OpenCore

if TYPE_CHECKING:
    import monolith._native as _native


_VERB = "apply_bag_gradients"


class QueueStep(NamedTuple):
    """A step of the tables of a queue, right after its `check` with these rates.

    Attributes:
        queue: is not empty.
        rates: one per segment of its tables.
        num_keys: as `check` returned it.
    """

    queue: GradientQueue | FeatureQueue
    rates: list[float]
    num_keys: int


def step_queues(steps: Sequence[QueueStep], beside: Callable[[], object] | None = None) -> None:
    """Apply and empty queues of different tables.

    The step of a table is the number of its updates so far; its time is that of its clock, which
    is asked once for all tables that share it. Tables do not depend on each other: together or one
    by one, their rows have the same bits.

    Args:
        steps: of queues that are not empty.
        beside: called once, on this thread: while others begin with tables of the core, if there
            are some, else before all steps. If it raises, some tables may have made theirs.
    """
    time_of = functools.partial(_time, {})
    fused: list[_FusedStep] = []
    single = []
    for step in steps:
        queue = step.queue
        if isinstance(queue, FeatureQueue):
            queue.step(time_of, beside)
            beside = None
            continue
        core = queue.table._step_core() if len(steps) > 1 else None
        if core is None:
            single.append((queue, step))
        else:
            fused.append(_FusedStep(queue, step, core, time_of(queue.table)))
    if fused:
        _run_fused(fused, beside)
    elif beside is not None:
        beside()
    for queue, step in single:
        _run(queue, step, time_of(queue.table))


class _FusedStep(NamedTuple):
    queue: GradientQueue
    step: QueueStep
    core: "_native.Table"
    now: int


def _time(times: dict[int, int], table: BaseTable) -> int:
    """Of the table's clock, kept in `times` by the clock."""
    clock = id(table._clock)
    if clock not in times:
        now = table._clock_time(_VERB)
        check_time(table.config, _VERB, now)
        times[clock] = now
    return times[clock]


def _run(queue: GradientQueue, step: QueueStep, now: int) -> None:
    threads = default_threads(step.num_keys)
    queue.table._apply_bag_gradients(queue.summed(), step.rates, queue.step, now, threads)
    queue.applied()


def _run_fused(steps: list[_FusedStep], beside: Callable[[], object] | None) -> None:
    """If memory runs out in a table, those that are done have empty queues, the others not."""
    import monolith._native as native

    cores, times = [each.core for each in steps], [each.now for each in steps]
    sums = [each.queue.summed() for each in steps]  # held: `beside` may drop a queue
    rates = [rate for each in steps for rate in each.step.rates]
    threads = default_threads(sum([each.step.num_keys for each in steps]))
    are_done = torch.zeros(len(steps), dtype=torch.bool, device="cpu")
    try:
        with OpenCore(native, _VERB) as core:
            parts = [summed.core for summed in sums]
            core.step_tables(cores, parts, rates, times, are_done.data_ptr(), threads, beside)
    finally:
        for each, is_done in zip(steps, are_done.tolist(), strict=True):
            if is_done:
                each.queue.applied()
