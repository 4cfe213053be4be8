"""Samples per second of a whole model (click_model.py), and what a step is made of.

Every system has a process of its own and holds rows of all ids; three comparisons, for not all of
them fit into memory at once. The ceiling is the rate of the dense layers alone.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from benchmarks.click_model import DIM, NUM_BATCHES, NUM_FEATURES, Sizes
from benchmarks.harness import (
    BenchmarkError,
    Measurement,
    Rules,
    Sample,
    Series,
    emit,
    interleave,
    ratios,
    say,
)
from benchmarks.processes import PEERS, WorkerProcess
from benchmarks.stage import Options, run_stage

COMMANDS = {
    "monolith": ("benchmarks.click_ours", "monolith"),
    "monolith_bags": ("benchmarks.click_ours", "monolith_bags"),
    "monolith_one": ("benchmarks.click_ours", "monolith_one"),
    "dense": ("benchmarks.click_torch",),
    "torch": ("benchmarks.peers.torch_model",),
    "fbgemm": ("benchmarks.peers.fbgemm_model",),
    "tfra": ("benchmarks.peers.tfra_model",),
}
ROUNDS = (
    ("monolith", "dense", "fbgemm", "torch"),
    ("monolith", "tfra"),
    ("monolith", "monolith_bags", "monolith_one"),
)
_OURS = "monolith"
_ROWS, _QUICK_ROWS = 1_000_000, 20_000
# Many short turns: some bounds are 5 % apart from 1, and the speed of a shared machine moves by
# 20 % within seconds. A step takes tens of milliseconds.
_SAMPLE_SECONDS, _NUM_RUNS = 0.6, 31
_QUICK_SECONDS = 0.2
_CHECK_STEPS = 8
_LOSS_TOLERANCE = 1e-5


def check_losses(losses: Mapping[str, list[float]]) -> None:
    """Refuse systems that train another model than ours."""
    ours = losses[_OURS]
    for system, theirs in losses.items():
        if not np.allclose(theirs, ours, rtol=0, atol=_LOSS_TOLERANCE):
            raise BenchmarkError(
                f"[end_to_end] expected the losses of {system} within {_LOSS_TOLERANCE} of ours, "
                f"{ours}, got {theirs}"
            )


class Comparison:
    """Systems that hold their tables at once and take turns.

    Args:
        systems: of `commands`; ours is one of them.
        sizes: of the model.
        rules: when a sample counts.
    """

    name = "end_to_end"
    commands: Mapping[str, tuple[str, ...]] = COMMANDS
    split_steps = 16  # of each round of a split

    def __init__(self, systems: tuple[str, ...], sizes: Sizes, rules: Rules) -> None:
        self._systems, self._sizes, self._rules = systems, sizes, rules
        self._versions: dict[str, dict[str, str]] = {}
        self._notes: dict[str, dict[str, Any]] = {system: {} for system in systems}

    def run(self) -> None:
        """Print a line per system."""
        say(f"[{self.name}] {self._sizes.rows:,} ids per feature: {', '.join(self._systems)}")
        with contextlib.ExitStack() as stack:
            workers = {
                system: stack.enter_context(
                    contextlib.closing(WorkerProcess(system, self.commands[system]))
                )
                for system in self._systems
            }
            self._build(workers)
            series = interleave(self._contenders(workers), self._rules)
            for system in workers:
                if system.startswith(_OURS):
                    self._notes[system] = workers[system].call("split", num_steps=self.split_steps)
        for system in series:
            self._emit(system, series)

    def _contenders(self, workers: Mapping[str, WorkerProcess]) -> dict[str, Callable[[], Sample]]:
        """What takes a sample, by name."""
        return {system: functools.partial(self._sample, w) for system, w in workers.items()}

    def _build(self, workers: Mapping[str, WorkerProcess]) -> None:
        losses = {}
        for system, worker in workers.items():
            self._versions[system] = worker.call("build", **asdict(self._sizes))["versions"]
            if system != "dense":
                losses[system] = worker.call("losses", num_steps=_CHECK_STEPS)["losses"]
            worker.call("warm_up", sample_seconds=self._rules.sample_seconds)
        check_losses(losses)

    @staticmethod
    def _sample(worker: WorkerProcess, **arguments: str) -> Sample:
        reply = worker.call("sample", **arguments)
        return Sample(reply["value"], reply["others_cores"])

    def _emit(self, system: str, series: Mapping[str, Series]) -> None:
        others = [other for other in series if other != _OURS]
        measurement = Measurement(
            name=self.name,
            system=system,
            unit="k samples/s",
            series=series[system],
            sizes={
                **asdict(self._sizes),
                "features": NUM_FEATURES,
                "dim": DIM,
                "distribution": "zipf",
                "hit_rate": 1.0,
                "batches": NUM_BATCHES,
            },
            versions=self._versions.get(system, self._versions[_OURS]),
            ratios=ratios(series, _OURS, others) if system == _OURS else {},
            notes=self._notes.get(system, {}),
        )
        emit(measurement, self._rules)


def run(options: Options) -> None:
    """All comparisons."""
    rules = replace(options.rules, sample_seconds=_QUICK_SECONDS)
    if not options.is_quick:
        rules = replace(rules, sample_seconds=_SAMPLE_SECONDS, num_runs=_NUM_RUNS)
    sizes = Sizes(_QUICK_ROWS if options.is_quick else _ROWS)
    for systems in ROUNDS:
        chosen = tuple(s for s in systems if options.with_peers or s not in PEERS)
        Comparison(chosen, sizes, rules).run()


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
