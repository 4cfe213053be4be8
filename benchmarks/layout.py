"""Ids of 100 features to pooled layouts, forward and backward, beside torch.

100 features of dim 16, 3 ids per cell; 40 are summed, 40 averaged, of 20 the first ids are kept.
"""

import functools
import sys
import time
from collections.abc import Callable

import torch

import monolith
from benchmarks.harness import Measurement, Sample, emit, interleave, say, timed
from benchmarks.layout_torch import DIM, IDS_PER_CELL, NUM_FEATURES, LayoutWork, TorchLayout
from benchmarks.stage import Options, run_stage

_VERSIONS = {"monolith": monolith.__version__, "torch": torch.__version__}
_THREADS = 2


def sample(step: Callable[[], object], seconds: float) -> Sample:
    """Milliseconds of a step."""
    num_steps = 0
    with timed() as window:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            step()
            num_steps += 1
    return Sample(window.seconds / num_steps * 1e3, window.others_cores)


def run(options: Options) -> None:
    """Print one line."""
    batch, vocabulary = (256, 1_000) if options.is_quick else (4_096, 10_000)
    say(f"[layout] {NUM_FEATURES} features, dim {DIM}, batch {batch}: forward and backward")
    torch.set_num_threads(_THREADS)
    work = LayoutWork.make(batch=batch, vocabulary=vocabulary)
    theirs = TorchLayout(work)
    contenders = {"torch": functools.partial(sample, theirs.step, options.rules.sample_seconds)}
    for warm_up in contenders.values():
        warm_up()
    series = interleave(contenders, options.rules)
    measurement = Measurement(
        name="layout",
        system="torch",
        unit="ms",
        series=series["torch"],
        sizes={
            "features": NUM_FEATURES,
            "dim": DIM,
            "batch": batch,
            "ids_per_cell": IDS_PER_CELL,
            "vocabulary": vocabulary,
            "threads": _THREADS,
        },
        versions=_VERSIONS,
    )
    emit(measurement, options.rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
