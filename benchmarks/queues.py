"""A nested batch of 50 tensors into a prefetch queue and out of it, nothing copied.

On one thread, and from a thread that fills the queue to one that empties it. Beside them
`queue.Queue` with the same batch as one object: no snapshot, no check of dtypes and ranks.

And a run of 5 steps of 0.2 s, each of which enters a call of an asynchronous function of 0.2 s;
beside it the same run without overlap.
"""

import functools
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import BenchmarkError, Sample, interleave, say, timed
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage
from monolith.native_training.queues import AsyncFunctionManager, prefetch
from monolith.train.driver import drive

_CAPACITY = 2
_CALLS_PER_CLOCK = 20
_BATCHES_PER_CLOCK = 500
_LIMIT_SECONDS = 60.0
_OVERLAP_STEPS = 5
_OVERLAP_SECONDS = 0.2  # of a step, and of the function that a step puts off

Ends = tuple[Callable[[], Any], Callable[[], Any]]
"""Puts the batch, and takes it."""


def make_batch() -> dict[str, Any]:
    """50 tensors in dictionaries, lists and tuples, and a constant."""
    return {
        "features": {f"feature_{i}": torch.ones(4, 8) for i in range(30)},
        "sequences": [(torch.ones(3), torch.ones(3, 2)) for _ in range(9)],
        "labels": (torch.ones(4), torch.ones(4)),
        "mode": "train",
    }


def ours(batch: Any) -> Ends:
    """Our queue, filled by a function that returns the ready batch."""
    take, filled = prefetch(lambda: batch, _CAPACITY)
    assert filled is not None
    return filled.enqueue_op, take


def plain(batch: Any) -> Ends:
    """The queue of the standard library."""
    line: queue.Queue[Any] = queue.Queue(_CAPACITY)
    return functools.partial(line.put, batch), line.get


def check(batch: Any, taken: Any) -> None:
    """Refuse what is not the same structure of the same tensors."""
    if isinstance(batch, dict | list | tuple):
        keys = list(batch) if isinstance(batch, dict) else range(len(batch))
        if type(taken) is type(batch) and len(taken) == len(batch):
            for key in keys:
                check(batch[key], taken[key])
            return
    if batch is not taken:
        raise BenchmarkError(f"wrong answer: expected {batch}, got {taken}")


def on_one_thread(ends: Ends, seconds: float) -> Sample:
    """Microseconds for a put and a take."""
    put, take = ends
    num_calls = 0
    with timed() as window:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            for _ in range(_CALLS_PER_CLOCK):
                put()
                take()
            num_calls += _CALLS_PER_CLOCK
    return Sample(1e6 * window.seconds / num_calls, window.others_cores)


def on_two_threads(ends: Ends, seconds: float) -> Sample:
    """Microseconds for a batch from one thread to the other."""
    put, take = ends
    num_batches = 0

    def fill() -> None:
        for _ in range(_BATCHES_PER_CLOCK):
            put()

    with timed() as window:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            thread = threading.Thread(target=fill)
            thread.start()
            for _ in range(_BATCHES_PER_CLOCK):
                take()
            thread.join(_LIMIT_SECONDS)
            num_batches += _BATCHES_PER_CLOCK
    return Sample(1e6 * window.seconds / num_batches, window.others_cores)


def steps_with_function(overlap: bool) -> Sample:
    """Measure the seconds of a run whose steps put a function off."""
    left, calls = list(range(_OVERLAP_STEPS)), list[int]()
    manager = AsyncFunctionManager()

    def function() -> None:
        time.sleep(_OVERLAP_SECONDS)
        calls.append(1)

    push = manager.add_async_function(function)

    def step() -> None:
        if not left:
            raise StopIteration
        left.pop()
        push()
        time.sleep(_OVERLAP_SECONDS)

    with timed() as window:
        drive(step, manager.hooks, overlap=overlap)
    if len(calls) != _OVERLAP_STEPS:
        raise BenchmarkError(f"[overlap] expected {_OVERLAP_STEPS} calls, got {len(calls)}")
    return Sample(window.seconds, window.others_cores)


def measure_overlap(options: Options) -> None:
    """Print the lines of a run whose steps put a function off, with and without overlap."""
    say(f"[queues] {_OVERLAP_STEPS} steps and functions of {_OVERLAP_SECONDS} s")
    question = Question("overlap", "s", {"steps": _OVERLAP_STEPS}, options.rules)
    takes = {
        system: functools.partial(steps_with_function, overlap)
        for system, overlap in {"monolith": True, "sequential": False}.items()
    }
    series = interleave(takes, options.rules)
    for system in takes:
        question.answer(series, system, "sequential", system=system)


def run(options: Options) -> None:
    """Print the lines of one and of two threads, and of the overlap."""
    measure_overlap(options)
    say("[queues] a nested batch of 50 tensors")
    batch = make_batch()
    systems = {"monolith": ours(batch), "queue.Queue": plain(batch)}
    for put, take in systems.values():
        put()
        check(batch, take())
    for name, measure, threads in (
        ("queue", on_one_thread, 1),
        ("queue_threads", on_two_threads, 2),
    ):
        takes = {
            system: functools.partial(measure, ends, options.rules.sample_seconds)
            for system, ends in systems.items()
        }
        for warm_up in takes.values():
            warm_up()
        sizes = {"tensors": 50, "capacity": _CAPACITY, "threads": threads}
        question = Question(name, "us", sizes, options.rules)
        series = interleave(takes, options.rules)
        for system in takes:
            question.answer(series, system, "queue.Queue", system=system)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
