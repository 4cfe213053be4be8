"""What saves in the background cost a run: its pauses, and its rate while a checkpoint is written.

The click model of `click_model.py`, with 26 features of 5 M rows together, on one thread of torch;
`background_saves_tables` computes next to nothing beside its tables. Checkpoints are written at
most at 100 MB/s, one after the other, so that one is always being written. `pause_*_ms` are those
of many further cuts of a chain of links, whose checkpoints are not written.
`links_of_run` compares a run that saves a link every 5 seconds with one that saves nothing.
"""

import functools
import itertools
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import monolith as ml
from benchmarks.click_model import DIM, NUM_FEATURES, Sizes
from benchmarks.harness import ROOT, BenchmarkError, Sample, say, timed
from benchmarks.question import Question
from benchmarks.servers import Click, Tables, batches_of
from benchmarks.stage import Options, run_stage
from monolith.checkpoint import Saved, WriteOptions, find
from monolith.checkpoint.cut import CheckpointSnapshot
from monolith.observe import MemorySink
from monolith.train import CheckpointHook, Hook, StepContext, StepResults

_ROWS, _QUICK_ROWS = 192_308, 2_000  # of each feature
_RATE = 100.0  # MB/s
_NUM_CUTS, _QUICK_CUTS = 200, 10
_LINK_SECONDS, _QUICK_LINK_SECONDS = 5.0, 0.1
_STEPS_PER_CUT = 4
_FOLDER = ROOT / "build" / "benchmarks" / "background_saves"


class Steps(Hook):
    """Counts steps until some seconds have passed, and ends the run."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self.num_steps = seconds, 0

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Begin with the first step, which takes the time of the begin of the run."""
        now = time.perf_counter()
        if not self.num_steps:
            self._start = now
        self.num_steps += 1
        self.seconds = now - self._start
        if self.seconds >= self._seconds:
            ctx.request_stop()

    @property
    def rate(self) -> float:
        """Return the steps per second."""
        return (self.num_steps - 1) / self.seconds


class Cuts(CheckpointHook):
    """Takes cuts; writes the first one, and reads which rows changed up to each other one."""

    _first: Saved | None = None

    def _write(self, snapshot: CheckpointSnapshot, options: WriteOptions) -> Saved:
        if self._first is None:
            self._first = super()._write(snapshot, options)
        else:
            for table in snapshot.tables:
                table.changes()
        return self._first


class Run:
    """A trainer with full tables."""

    def __init__(self, task: ml.Task, sizes: Sizes) -> None:
        self.sink = MemorySink()
        self.trainer = ml.Trainer(task, ml.TrainSettings(threads=sizes.threads), metrics=self.sink)
        self._data = batches_of(sizes)
        for table in self.trainer.features.tables.values():
            for start in range(0, sizes.rows, 65_536):
                table.lookup_or_insert(torch.arange(start, min(start + 65_536, sizes.rows)))
        self.fit(Steps(2.0))
        self.num_saves = self.num_links = 0

    def fit(self, *hooks: Hook, num_steps: int | None = None) -> ml.train.FitResult:
        """Train until a hook ends the run."""
        batches = itertools.islice(itertools.cycle(self._data), num_steps)
        return self.trainer.fit(batches, hooks=hooks)

    def take(self, seconds: float, *, is_saving: bool) -> Sample:
        """Measure the steps per second, with checkpoints one after the other or without."""
        shutil.rmtree(_FOLDER, ignore_errors=True)
        steps = Steps(seconds)
        hook = CheckpointHook(_FOLDER, every_steps=1, keep=1, full_every=1, rate=_RATE)
        with timed() as window:
            result = self.fit(steps, *[hook] * is_saving)
        if is_saving:
            self._check(result)
        return Sample(steps.rate, window.others_cores)

    def take_linked(self, seconds: float, every: float | None) -> Sample:
        """Measure the steps per second with a link at a pace in seconds, or without."""
        steps = Steps(seconds)
        saves = [] if every is None else [self._links_hook(every)]
        with timed() as window:
            result = self.fit(steps, *saves)
        if every is not None:
            self.num_links += result.saves.num_saved - result.saves.num_full
        return Sample(steps.rate, window.others_cores)

    def _links_hook(self, every: float) -> CheckpointHook:
        """Save a full checkpoint, from which the links of the next run go on."""
        shutil.rmtree(_FOLDER, ignore_errors=True)
        self.trainer.restore(self.trainer.save(_FOLDER))
        return CheckpointHook(_FOLDER, every_seconds=every, keep=2, rate=_RATE)

    def _check(self, result: ml.train.FitResult) -> None:
        checkpoint, num_rows = find(_FOLDER), self.trainer.features.num_rows()
        rows = sum(checkpoint.manifest.num_rows.values()) if checkpoint else 0
        if rows != num_rows:
            raise BenchmarkError(f"[background_saves] expected {num_rows} saved rows, got {rows}")
        self.num_saves += result.saves.num_saved

    def pauses(self, num_cuts: int) -> dict[str, float]:
        """Return what cuts take of the training thread, in milliseconds."""
        hook = Cuts(_FOLDER, every_steps=_STEPS_PER_CUT, rate=0, busy="wait")
        before = len(self._pauses())
        self.fit(hook, num_steps=num_cuts * _STEPS_PER_CUT)
        pauses = sorted(self._pauses()[before:])
        if len(pauses) < num_cuts:
            raise BenchmarkError(f"[background_saves] expected {num_cuts} cuts, got {len(pauses)}")
        at = {"p50": statistics.median(pauses), "p99": pauses[int(0.99 * len(pauses))]}
        return {
            f"pause_{name}_ms": round(s * 1e3, 3) for name, s in {**at, "max": pauses[-1]}.items()
        }

    def _pauses(self) -> list[float]:
        return [f["pause_seconds"] for name, f in self.sink.events if name == "checkpoint_saved"]


def measure(name: str, task: ml.Task, sizes: Sizes, options: Options) -> None:
    """Print the line of a model."""
    say(f"[{name}] {NUM_FEATURES} features of {sizes.rows:,} rows")
    run = Run(task, sizes)
    num_bytes = run.trainer.features.num_rows() * (2 * DIM * 4 + 16)
    seconds = options.rules.sample_seconds if options.is_quick else 1.2 * num_bytes / _RATE / 1e6
    takes: dict[str, Callable[[], Sample]] = {
        "saving": functools.partial(run.take, seconds, is_saving=True),
        "alone": functools.partial(run.take, seconds, is_saving=False),
    }
    facts: dict[str, Any] = {"rows": sizes.rows, "batch": sizes.batch, "threads": sizes.threads}
    facts |= {"features": NUM_FEATURES, "dim": DIM, "distribution": "zipf", "rate_mb_s": _RATE}
    num_cuts = _QUICK_CUTS if options.is_quick else _NUM_CUTS
    notes = lambda: {"num_saves": run.num_saves, **run.pauses(num_cuts)}  # noqa: E731
    Question(name, "steps/s", facts, options.rules).measure(takes, notes)
    every = _QUICK_LINK_SECONDS if options.is_quick else _LINK_SECONDS
    if name == "background_saves":
        measure_links(run, facts | {"link_seconds": every}, options)
    run.trainer.close()


def measure_links(run: Run, facts: dict[str, Any], options: Options) -> None:
    """Print the line of a run that saves a link every few seconds."""
    every = facts["link_seconds"]
    takes = {
        "linked": functools.partial(run.take_linked, 4.5 * every, every),
        "alone": functools.partial(run.take_linked, 4.5 * every, None),
    }
    notes = lambda: {"num_links": run.num_links}  # noqa: E731
    Question("links_of_run", "steps/s", facts, options.rules).measure(takes, notes)
    if not (run.num_links or options.is_quick):
        raise BenchmarkError("[background_saves] expected links, got none")


def run(options: Options) -> None:
    """Print a line for each model."""
    sizes = Sizes(_QUICK_ROWS if options.is_quick else _ROWS, threads=1)
    try:
        measure("background_saves", Click(), sizes, options)
        measure("background_saves_tables", Tables(), sizes, options)
    finally:
        shutil.rmtree(_FOLDER, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
