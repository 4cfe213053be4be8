"""Events per second of a joiner with a window of a million open impressions.

Impressions have 26 ids and 4 floats; for each four of them comes an action, spread over the window.
Before a sample, the joiner has a full window, and remembers the keys of the window before it. Each
sample handles the events of the next moments, in blocks as they come from a broker: as many
impressions leave as come. "memory" has no folder, "folder" writes each event to the journal and a
snapshot every million events, "spill" keeps 64 MiB of features in memory. "python" is a dict of
open impressions and a queue of their times, without features, folder, lateness or duplicates.
"""

import collections
import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import ROOT, BenchmarkError, Sample, interleave, say, timed
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage
from monolith.data.order import mix
from monolith.data.stream.join import JoinSettings, OnlineJoiner

_OPEN, _QUICK_OPEN = 1_000_000, 20_000
_IDS, _FLOATS = 26, 4
_PER_ACTION = 4  # impressions for each action
_BLOCK = 4_000  # impressions
_BLOCKS, _QUICK_BLOCKS = 50, 5  # of a sample
_SPILL_BYTES = 64 << 20
_FOLDER = ROOT / "build" / "benchmarks" / "joiner"
Block = tuple[pa.RecordBatch, pa.RecordBatch]


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Keys of impressions, in no order."""
    return mix(numbers.astype(np.uint64)).view(np.int64)


def blocks(window: int, first: int = 0) -> Iterator[Block]:
    """Impressions, one at each time, and actions of impressions of the last window."""
    draw = np.random.default_rng(0)
    ids = {f"id_{at}": pa.array(draw.integers(0, 1 << 40, _BLOCK)) for at in range(_IDS)}
    floats = {f"float_{at}": pa.array(draw.random(_BLOCK, np.float32)) for at in range(_FLOATS)}
    while True:
        numbers = np.arange(first, first + _BLOCK)
        shown = pa.record_batch(
            {"key": pa.array(keys_of(numbers)), "time": pa.array(numbers), **ids, **floats}
        )
        times = numbers[::_PER_ACTION]
        targets = times - draw.integers(0, window, len(times))
        kinds = draw.integers(0, 2, len(times))
        acted = pa.record_batch({"key": keys_of(targets), "time": times, "kind": kinds})
        yield shown, acted
        first += _BLOCK


class Ours:
    """A joiner with a full window."""

    def __init__(self, window: int, **options: Any) -> None:
        settings = JoinSettings("key", window, {"click": [0], "buy": [1]})
        self.joiner = OnlineJoiner(settings, **options)
        self._blocks = blocks(window)
        self.run(-(-2 * window // _BLOCK) + 1)

    def run(self, count: int) -> int:
        """Handle blocks; return the number of samples that left."""
        num_left = 0
        for _ in range(count):
            for source, block in enumerate(next(self._blocks)):
                samples = self.joiner.add(block, source)
                num_left += 0 if samples is None else samples.num_rows
        return num_left


class Plain:
    """A dict and a queue."""

    def __init__(self, window: int) -> None:
        self._window, self._open = window, dict[int, set[int]]()
        self._queue: collections.deque[tuple[int, int]] = collections.deque()
        self._blocks = blocks(window)
        self.run(-(-window // _BLOCK) + 1)

    def run(self, count: int) -> int:
        """Handle blocks; return the number of samples that left."""
        num_left = 0
        for _ in range(count):
            shown, acted = next(self._blocks)
            for key, time in zip(
                *(shown[name].to_pylist() for name in ("key", "time")), strict=True
            ):
                self._open[key] = set()
                self._queue.append((time, key))
            rows = (acted[name].to_pylist() for name in ("key", "kind"))
            for key, kind in zip(*rows, strict=True):
                if key in self._open:
                    self._open[key].add(kind)
            while self._queue and self._queue[0][0] + self._window < time:
                del self._open[self._queue.popleft()[1]]
                num_left += 1
        return num_left


def sample(joiner: Ours | Plain, num_blocks: int) -> Sample:
    """Thousand events per second."""
    with timed() as window:
        num_left = joiner.run(num_blocks)
    if not 0.98 < num_left / (num_blocks * _BLOCK) < 1.02:
        raise BenchmarkError(f"[joiner] expected a sample for each impression, got {num_left}")
    num_events = num_blocks * (_BLOCK + _BLOCK // _PER_ACTION)
    return Sample(num_events / window.seconds / 1e3, window.others_cores)


def run(options: Options) -> None:
    """One line for each kind of joiner."""
    size = _QUICK_OPEN if options.is_quick else _OPEN
    num_blocks = _QUICK_BLOCKS if options.is_quick else _BLOCKS
    shutil.rmtree(_FOLDER, ignore_errors=True)
    makers: dict[str, Callable[[], Ours | Plain]] = {
        "monolith": functools.partial(Ours, size, folder=_FOLDER / "folder"),
        "memory": functools.partial(Ours, size),
        "spill": functools.partial(
            Ours, size, folder=_FOLDER / "spill", memory_bytes=_SPILL_BYTES
        ),
        "python": functools.partial(Plain, size),
    }  # fmt: skip
    try:
        say(f"[joiner] windows of {size:,} impressions")
        joiners = {name: make() for name, make in makers.items()}
        takes = {
            name: functools.partial(sample, joiner, num_blocks) for name, joiner in joiners.items()
        }
        series = interleave(takes, options.rules)
        sizes = {
            "open": size, "ids": _IDS, "floats": _FLOATS, "block": _BLOCK,
            "per_action": _PER_ACTION, "cores": os.cpu_count(),
        }  # fmt: skip
        question = Question("joiner", "k events/s", sizes, options.rules)
        for system, joiner in joiners.items():
            notes = {}
            if isinstance(joiner, Ours):
                notes = {"memory_bytes": joiner.joiner.memory_bytes}
                joiner.joiner.close()
            question.answer(series, system, "python", system=system, notes=notes)
        stored = sum(path.stat().st_size for path in Path(_FOLDER).rglob("*") if path.is_file())
        say(f"[joiner] {stored / 2**30:.2f} GiB in two folders")
    finally:
        shutil.rmtree(_FOLDER, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
