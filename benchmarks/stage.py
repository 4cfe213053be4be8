"""What stages share: their options, and the loop over sizes, distributions and systems."""

import argparse
import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.harness import (
    QUICK,
    BenchmarkError,
    Measurement,
    Rules,
    Sample,
    Series,
    available_bytes,
    emit,
    interleave,
    ratios,
    say,
)
from benchmarks.processes import WorkerProcess
from benchmarks.workload import DISTRIBUTIONS, Workload

_MILLION = 1_000_000
_MAX_MEMORY_SHARE = 0.8  # of what is free, for tables that are held at once
QUICK_ROWS = 200_000
_OVERHEAD_BYTES = {"monolith": 36, "torch": 0, "fbgemm": 0, "tfra": 20, "tfra_packed": 20}


@dataclass(frozen=True)
class Options:
    """Options of a stage."""

    is_quick: bool
    with_peers: bool

    @property
    def rules(self) -> Rules:
        """When a sample counts."""
        return QUICK if self.is_quick else Rules()


def run_stage(description: str | None, run: Callable[[Options], None]) -> int:
    """The command line of a stage that runs alone: `python -m benchmarks.lookup --quick`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes, short samples")
    parser.add_argument("--peers", action="store_true", help="also measure the peers")
    arguments = parser.parse_args()
    try:
        run(Options(arguments.quick, arguments.peers))
    except BenchmarkError as error:
        say(f"error: {error}")
        return 1
    return 0


@dataclass(frozen=True)
class Case:
    """Systems to compare on one workload; ratios are those of the first to the others."""

    workload: Workload
    systems: tuple[str, ...]


def matrix(options: Options, peers: Sequence[tuple[int, int, str]]) -> list[Case]:
    """The cases of a stage: every size with ours and torch, and the peers where asked for.

    Args:
        options: of the stage.
        peers: (million rows, dim, system): the sizes at which a peer is measured. A size that is
            not in the matrix (TFRA does not fit at the largest) becomes a case without torch.
    """
    chosen = [peer for peer in peers if options.with_peers]
    if options.is_quick:
        at_dim = {dim: dict.fromkeys(s for _, d, s in chosen if d == dim) for dim in (16, 64)}
        return [
            Case(Workload(QUICK_ROWS, dim), ("monolith", "torch", *names))
            for dim, names in at_dim.items()
        ]
    systems = {(rows, dim): ["monolith", "torch"] for rows in (2, 20) for dim in (16, 64)}
    for rows, dim, system in chosen:
        systems.setdefault((rows, dim), ["monolith"]).append(system)
    return [
        Case(Workload(rows * _MILLION, dim), tuple(names)) for (rows, dim), names in systems.items()
    ]


def table_bytes(system: str, workload: Workload, *, with_state: bool) -> int:
    """About what a table takes; TFRA's slots are half empty after it has grown."""
    row = workload.dim * 4 * (2 if with_state else 1) + _OVERHEAD_BYTES[system]
    return workload.rows * row * (2 if system.startswith("tfra") else 1)


def sizes_of(workload: Workload, distribution: str | None = None) -> dict[str, Any]:
    """The size fields of a JSON line."""
    sizes = asdict(workload)
    return {**sizes, "distribution": distribution, "hit_rate": 1.0} if distribution else sizes


class Comparison:
    """Measures the systems of a case on one stage ("lookup" or "update") and prints the lines."""

    def __init__(self, stage: str, case: Case, rules: Rules) -> None:
        self._stage, self._case, self._rules = stage, case, rules
        self._versions: dict[str, dict[str, str]] = {}

    def run(self) -> None:
        """All systems side by side if they fit into memory, else one process at a time."""
        case, with_state = self._case, self._stage == "update"
        needed = sum(table_bytes(s, case.workload, with_state=with_state) for s in case.systems)
        sizes = f"{case.workload.rows:,} rows, dim {case.workload.dim}"
        say(f"[{self._stage}] {sizes}: {', '.join(case.systems)} (about {needed / 1e9:.1f} GB)")
        if needed < _MAX_MEMORY_SHARE * available_bytes():
            self._run_together()
        else:
            say(f"[{self._stage}] not enough memory for all at once: one at a time, in two rounds")
            self._run_apart()

    def _run_together(self) -> None:
        """All systems hold their tables at once and take turns sample by sample."""
        with contextlib.ExitStack() as stack:
            workers = {
                system: stack.enter_context(contextlib.closing(WorkerProcess(system)))
                for system in self._case.systems
            }
            for worker in workers.values():
                self._build(worker)
            for distribution in DISTRIBUTIONS:
                contenders = {
                    system: self._warm(worker, distribution) for system, worker in workers.items()
                }
                self._emit(distribution, interleave(contenders, self._rules), "samples")

    def _run_apart(self) -> None:
        """One system at a time, A B A B, each time with a new process and half of the samples."""
        rules, systems = self._rules, self._case.systems
        half = replace(
            rules, num_runs=(rules.num_runs + 1) // 2, max_discards=rules.max_discards // 4
        )
        series = {d: {system: Series() for system in systems} for d in DISTRIBUTIONS}
        for system in systems * 2:
            with contextlib.closing(WorkerProcess(system)) as worker:
                self._build(worker)
                for distribution in DISTRIBUTIONS:
                    contenders = {system: self._warm(worker, distribution)}
                    series[distribution][system].extend(interleave(contenders, half)[system])
        for distribution in DISTRIBUTIONS:
            self._emit(distribution, series[distribution], "processes")

    def _build(self, worker: WorkerProcess) -> None:
        reply = worker.call("build", stage=self._stage, **asdict(self._case.workload))
        self._versions[worker.system] = reply["versions"]

    def _warm(self, worker: WorkerProcess, distribution: str) -> Callable[[], Sample]:
        seconds = self._rules.sample_seconds
        worker.call("warm_up", distribution=distribution, sample_seconds=seconds)
        return functools.partial(worker.sample, distribution)

    def _emit(self, distribution: str, series: Mapping[str, Series], interleaved: str) -> None:
        ours, *others = self._case.systems
        for system in self._case.systems:
            measurement = Measurement(
                name=self._stage,
                system=system,
                unit="M keys/s",
                series=series[system],
                sizes=sizes_of(self._case.workload, distribution),
                versions=self._versions[system],
                ratios=ratios(series, ours, others) if system == ours else {},
                notes={"interleaved": interleaved},
            )
            emit(measurement, self._rules)
