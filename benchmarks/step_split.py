"""What a training step spends its time on: dense layers, tables, copies, Python; and idle cores."""

import contextlib
import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from torch.autograd.profiler_util import FunctionEventAvg
from torch.profiler import ProfilerActivity, profile

Steps = Callable[[int], None]
Call = tuple[object, str]
_NUM_ROUNDS = 5
# Modules have checked the arguments, and call what is below the verbs.
BAG_CALLS = ("_lookup_bags", "_sum_bag_gradients", "_apply_bag_gradients")
_COPIES = ("cat", "copy_", "clone", "arange", "fill_", "zero_")


def _key(call: str) -> str:
    """Of a call among the parts of a step, whatever its name is."""
    return f"call {call}"


class StepSplit:
    """Measures what `steps(n)` is made of.

    - dense: the dense layers alone, in the same process.
    - sparse: inside calls of the tables, by call; these steps are not those of the total.
    - copy: torch's copies and fills that the dense layers alone do not need, as torch's
      profiler sees them: the input put together, its gradient taken apart, ids kept for the step.
    - python: the rest, autograd's own work included.
    - idle: what the cores did not work, times cores: not a part of the total.

    Args:
        steps: runs a number of steps of the model.
        dense_steps: the same for the dense layers alone.
        calls: what the tables of the model do: objects, and the names of their methods.
    """

    def __init__(self, steps: Steps, dense_steps: Steps, calls: Sequence[Call]) -> None:
        self._steps, self._dense_steps, self._calls = steps, dense_steps, calls
        self._names = list(dict.fromkeys(name for _, name in calls))

    def measure(self, num_steps: int) -> dict[str, Any]:
        """Milliseconds of a step; medians over rounds in which the parts take turns."""
        self._dense_steps(num_steps)
        rounds = [self._round(num_steps) for _ in range(_NUM_ROUNDS)]
        median = {part: statistics.median(r[part] for r in rounds) for part in rounds[0]}
        calls = {name: median.pop(_key(name)) for name in self._names}
        sparse = sum(calls.values())
        copy = self._copies(self._steps) - self._copies(self._dense_steps)
        parts = {
            "step_ms": median["step"],
            "dense_ms": median["dense"],
            "sparse_ms": sparse,
            "copy_ms": copy,
            "python_ms": median["step"] - median["dense"] - sparse - copy,
            "idle_ms": median["idle"],
        }
        rounded = {part: round(value, 3) for part, value in parts.items()}
        return {
            **rounded,
            "calls_ms": {name.strip("_"): round(ms, 3) for name, ms in calls.items()},
        }

    def _round(self, num_steps: int) -> dict[str, float]:
        per_step = 1e3 / num_steps
        cpu, start = time.process_time(), time.perf_counter()
        self._steps(num_steps)
        wall = time.perf_counter() - start
        idle = (os.cpu_count() or 1) * wall - (time.process_time() - cpu)
        start = time.perf_counter()
        self._dense_steps(num_steps)
        dense = time.perf_counter() - start
        with self._timed_calls() as seconds:
            self._steps(num_steps)
        parts = {"step": wall, "dense": dense, "idle": idle, **seconds}
        return {part: value * per_step for part, value in parts.items()}

    @contextlib.contextmanager
    def _timed_calls(self) -> Iterator[dict[str, float]]:
        """Adds up the seconds inside the calls of the tables."""
        seconds = {_key(name): 0.0 for name in self._names}

        def timed(name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                seconds[_key(name)] += time.perf_counter() - start

        with contextlib.ExitStack() as stack:
            for owner, name in self._calls:
                call = functools.partial(timed, name, getattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, call))
            yield seconds

    @staticmethod
    def _copies(steps: Steps, num_steps: int = 8) -> float:
        """Milliseconds of a step in torch's copies."""
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            steps(num_steps)
        events: list[FunctionEventAvg] = list(profiler.key_averages())
        names = {f"aten::{name}" for name in _COPIES}
        total = sum(event.self_cpu_time_total for event in events if event.key in names)
        return float(total) / 1e3 / num_steps
