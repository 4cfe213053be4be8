"""A step of many queues of gradients: those of native tables in one call of the core."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.embedding.checks import check_time, default_threads
from monolith.embedding.feature_queue import FeatureQueue
from monolith.embedding.gradient_queue import GradientQueue
from monolith.embedding.native_core import OpenCore
from monolith.embedding.verbs import TableVerbs

if TYPE_CHECKING:
    import monolith._native as _native

__all__ = ["QueueStep", "step_queues"]

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


def step_queues(steps: Sequence[QueueStep]) -> None:
    """Apply and empty queues of different tables.

    The step of a table is the number of its updates so far; its time is that of its clock, which
    is asked once for all tables that share it. Tables do not depend on each other: together or one
    by one, their rows have the same bits.
    """
    time_of = functools.partial(_time, {})
    fused, cores = [], []
    for step in steps:
        queue = step.queue
        if isinstance(queue, FeatureQueue):
            queue.step(time_of)
            continue
        core = queue.table._step_core() if len(steps) > 1 else None
        if core is None:
            _run(queue, step, time_of(queue.table))
        else:
            fused.append((queue, step))
            cores.append(core)
    if fused:
        _run_fused(fused, cores, [time_of(queue.table) for queue, _ in fused])


def _time(times: dict[int, int], table: TableVerbs) -> int:
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


def _run_fused(
    steps: list[tuple[GradientQueue, QueueStep]], cores: "list[_native.Table]", times: list[int]
) -> None:
    """If memory runs out in a table, those that are done have empty queues, the others not."""
    import monolith._native as native

    sums = [queue.summed().core for queue, _ in steps]
    rates = [rate for _, step in steps for rate in step.rates]
    threads = default_threads(sum([step.num_keys for _, step in steps]))
    are_done = torch.zeros(len(steps), dtype=torch.bool, device="cpu")
    try:
        with OpenCore(native, _VERB) as core:
            core.step_tables(cores, sums, rates, times, are_done.data_ptr(), threads)
    finally:
        for (queue, _), is_done in zip(steps, are_done.tolist(), strict=True):
            if is_done:
                queue.applied()
