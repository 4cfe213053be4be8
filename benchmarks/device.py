"""The dense part on a CUDA device and tables in main memory, against all of it on the CPU.

26 features at batch 4,096 on batches that are ready: with a loss that needs next to nothing (light)
and with the MLP 429-256-64-1 (click); without prefetch and push, and with prefetch=2, push=1. A
line has the share of the step that waits for batches and rows (`wait_share`; without prefetch the
step makes them itself), and that waits until the device has computed and copied (`copy_share`).
"""

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch

import monolith as ml
from benchmarks.click_model import DIM, NUM_FEATURES, Sizes
from benchmarks.harness import BenchmarkError, Sample, interleave, say, timed
from benchmarks.question import VERSIONS, Question
from benchmarks.servers import Click, Tables, batches_of
from benchmarks.stage import Options, run_stage
from monolith.observe import MemorySink

_ROWS, _QUICK_ROWS = 200_000, 2_000  # ids of each feature
_AHEAD: dict[str, dict[str, Any]] = {"in_turn": {}, "ahead": {"prefetch": 2, "push": 1}}
_STAGES = ("wait", "read", "lookup", "send", "forward", "backward", "copy", "update")
_FIRST_LOSSES = 8
_LARGEST_GAP = 1e-3  # of the first losses on two devices


class Fit:
    """`Trainer.fit` on batches that are ready, with the stages of its steps."""

    def __init__(self, task: ml.Task, data: list[ml.data.Batch], **options: Any) -> None:
        self._sink = MemorySink()
        settings = ml.TrainSettings(log_every=0, max_recoveries=0, **options)
        self._trainer = ml.Trainer(task, settings, metrics=self._sink)
        self._batches = itertools.cycle(data)

    def run(self, num_steps: int) -> float:
        """Return the mean loss of some steps."""
        return self._trainer.fit(itertools.islice(self._batches, num_steps)).figures.loss

    def sample(self, num_steps: int) -> Sample:
        """Measure the milliseconds of a step."""
        with timed() as window:
            self.run(num_steps)
        return Sample(window.seconds / num_steps * 1e3, window.others_cores)

    def notes(self) -> dict[str, Any]:
        """Return the milliseconds of each stage in the last sample, and shares of the step."""
        stages = {name: self._sink.value(f"step/{name}_seconds", {}) or 0.0 for name in _STAGES}
        parts = ("wait", "forward", "backward", "copy", "update")
        step = sum(stages[name] for name in parts)
        return {
            "wait_share": round(stages["wait"] / step, 4),
            "copy_share": round(stages["copy"] / step, 4),
            **{f"{name}_ms": round(1e3 * seconds, 4) for name, seconds in stages.items()},
        }

    def close(self) -> None:
        """Free the tables."""
        self._trainer.close()


def devices() -> list[str]:
    """Return the devices of this machine that are measured."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def check(fits: dict[str, Fit]) -> None:
    """Refuse runs in turn whose first losses differ between devices."""
    losses = {name: [fit.run(1) for _ in range(_FIRST_LOSSES)] for name, fit in fits.items()}
    for name, found in losses.items():
        gap = max(abs(a - b) for a, b in zip(found, losses["cpu"], strict=True))
        if gap > _LARGEST_GAP:
            raise BenchmarkError(
                f"[device] expected the losses {losses['cpu']}, got {found} on {name}"
            )


def measure(
    name: str, make: Callable[[], ml.Task], data: Any, options: Options, facts: Any
) -> None:
    """Print the lines of a model: a line for each device, in turn and ahead."""
    for ahead, settings in _AHEAD.items():
        fits = {d: Fit(make(), data, device=d, **settings) for d in devices()}
        if not settings:
            check(fits)
        takes = {}
        for device, fit in fits.items():
            seconds = fit.sample(20).value / 1e3
            num_steps = max(10, round(options.rules.sample_seconds / seconds))
            takes[device] = functools.partial(fit.sample, num_steps)
        versions = dict(VERSIONS)
        if "cuda" in fits:
            versions["device"] = torch.cuda.get_device_name()
        sizes = {**facts, "model": name, "ahead": ahead, **settings}
        question = Question(f"device_{name}", "ms a step", sizes, options.rules, versions)
        series = interleave(takes, options.rules)
        for device, fit in fits.items():
            system = "monolith" if device == "cuda" else device
            question.answer(series, device, "cpu", system=system, notes=fit.notes())
            fit.close()


def run(options: Options) -> None:
    """Print the lines of both models."""
    rows = _QUICK_ROWS if options.is_quick else _ROWS
    sizes = Sizes(rows)
    data = batches_of(sizes)
    threads = torch.get_num_threads()
    say(f"[device] {NUM_FEATURES} features, batch {sizes.batch:,}, {threads} threads: {devices()}")
    facts = {"rows": rows, "dim": DIM, "batch": sizes.batch, "threads": threads}
    for name, make in (("light", Tables), ("click", Click)):
        measure(name, make, data, options, facts)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
