"""What all sinks of metrics cost a run: TensorBoard, Prometheus and JSON lines, against none.

26 features whose model computes next to nothing, batch 4,096, a report every 20 steps as on the
command line; and 1,000 features at batch 1, the most tables and the smallest step, a report every
100 steps, the default of a trainer. `cpu_ratio` is the ratio of the processor time of the process,
which other processes disturb less.
"""

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import monolith as ml
from benchmarks import trainer as small_model
from benchmarks.click_model import DIM, NUM_FEATURES, Sizes
from benchmarks.harness import BenchmarkError, Rules, Sample, say, timed
from benchmarks.question import Question
from benchmarks.servers import Tables, batches_of
from benchmarks.stage import Options, run_stage
from monolith.observe import JsonLinesSink, MultiSink, PrometheusSink, TensorBoardSink

_ROWS, _QUICK_ROWS = 200_000, 2_000  # ids of each feature
_RULES = Rules(num_runs=15)
_LEAST_REPORTS = 10  # of a sample; a run counts all rows once more at its start


class Fit:
    """`Trainer.fit` on batches that are ready, with all sinks or with none."""

    def __init__(self, task: ml.Task, data: Sequence[ml.data.Batch], every: int, sink: Any) -> None:
        settings = ml.TrainSettings(log_every=every)
        self._trainer = ml.Trainer(task, settings, metrics=sink)
        self._batches = itertools.cycle(data)
        self.cpu_seconds: list[float] = []

    def run(self, num_steps: int) -> float:
        """Return the mean loss of some steps."""
        return self._trainer.fit(itertools.islice(self._batches, num_steps)).figures.loss

    def sample(self, num_steps: int) -> Sample:
        """Measure the milliseconds of a step, and keep the processor time of the process."""
        start = time.process_time()
        with timed() as window:
            self.run(num_steps)
        self.cpu_seconds.append((time.process_time() - start) / num_steps)
        return Sample(window.seconds / num_steps * 1e3, window.others_cores)


def all_sinks(folder: str) -> MultiSink:
    """Open a sink of each kind."""
    return MultiSink(
        [
            TensorBoardSink(folder),
            PrometheusSink(0),
            JsonLinesSink(Path(folder, "metrics.jsonl")),
        ]
    )


def measure(
    name: str,
    make: Callable[[], ml.Task],
    data: Sequence[ml.data.Batch],
    rules: Rules,
    facts: Mapping[str, int],
) -> None:
    """Print the line of a model."""
    every = facts["log_every"]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sinks = all_sinks(folder)
        stack.callback(sinks.close)
        fits = {"sinks": Fit(make(), data, every, sinks), "none": Fit(make(), data, every, None)}
        ours, theirs = ([fit.run(1) for _ in range(4)] for fit in fits.values())
        if ours != theirs:
            raise BenchmarkError(f"[{name}] expected the losses {theirs}, got {ours}")
        for fit in fits.values():
            fit.run(2 * len(data))  # every id has a row
        seconds = fits["none"].sample(8).value / 1e3
        num_reports = max(_LEAST_REPORTS, round(rules.sample_seconds / seconds / every))
        num_steps = every * num_reports
        for fit in fits.values():
            fit.cpu_seconds.clear()
        takes = {which: lambda fit=fit: fit.sample(num_steps) for which, fit in fits.items()}

        def notes() -> dict[str, float]:
            ours, theirs = (statistics.median(fit.cpu_seconds) for fit in fits.values())
            return {"cpu_ratio": round(ours / theirs, 4)}

        Question(name, "ms a step", facts, rules).measure(takes, notes)


def run(options: Options) -> None:
    """Print a line for each model."""
    rules = options.rules if options.is_quick else _RULES
    sizes = Sizes(_QUICK_ROWS if options.is_quick else _ROWS)
    torch.set_num_threads(sizes.threads)
    say(f"[metrics] {NUM_FEATURES} features, batch {sizes.batch}")
    facts = {"rows": sizes.rows, "batch": sizes.batch, "features": NUM_FEATURES, "dim": DIM}
    facts["log_every"] = 20
    measure("metrics", Tables, batches_of(sizes), rules, facts)
    say("[metrics] 1,000 features, batch 1")
    facts = {"batch": 1, "features": len(small_model.Small.features), "log_every": 100}
    measure("metrics_small", small_model.Small, small_model.pipeline_batches(), rules, facts)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
