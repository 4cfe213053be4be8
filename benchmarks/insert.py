"""Insert of new keys: a table grows from 1,000 keys to its size, on memory that was touched before.

The baseline is torch writing initial values to as many fresh rows: no index, no growth. Every run
has a process of its own.
"""

import contextlib
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from benchmarks.harness import Measurement, Rules, Sample, emit, interleave, ratios, say
from benchmarks.processes import WorkerProcess
from benchmarks.stage import Case, Options, matrix, run_stage, sizes_of, table_bytes

PEERS = [(20, 16, "tfra"), (10, 64, "tfra")]
_SMALL_ROWS = 2_000_000  # every run passes this size, so that it needs no run of its own
_NUM_PAUSE_RUNS = 3
_MAX_DISCARDS = 4  # a run takes seconds, not fractions of one


def batch_seconds(replies: list[dict[str, Any]]) -> list[float]:
    """Per batch, the minimum over the three quietest runs: what the table itself takes."""
    quiet = sorted(replies, key=lambda reply: float(reply["others_cores"]))[:_NUM_PAUSE_RUNS]
    return [min(times) for times in zip(*(r["batch_seconds"] for r in quiet), strict=True)]


def _early_rate(replies: list[dict[str, Any]], batch: int) -> float:
    """Million keys per second until the table has two million, the median of the runs."""
    num_batches = _SMALL_ROWS // batch
    times: list[list[float]] = [reply["batch_seconds"][:num_batches] for reply in replies]
    return round(statistics.median(len(t) * batch / sum(t) for t in times) / 1e6, 3)


def _contender(system: str, case: Case, replies: list[dict[str, Any]]) -> Callable[[], Sample]:
    peak_bytes = int(1.5 * table_bytes(system, case.workload, with_state=False))

    def take() -> Sample:
        with contextlib.closing(WorkerProcess(system)) as worker:
            reply = worker.call("insert", peak_bytes=peak_bytes, **asdict(case.workload))
        replies.append(reply)
        return Sample(reply["value"], reply["others_cores"])

    return take


def run_case(case: Case, rules: Rules) -> None:
    """Measure a case and print its lines."""
    sizes = f"{case.workload.rows:,} rows, dim {case.workload.dim}"
    say(f"[insert] {sizes}: {', '.join(case.systems)}")
    replies: dict[str, list[dict[str, Any]]] = {system: [] for system in case.systems}
    series = interleave({s: _contender(s, case, replies[s]) for s in case.systems}, rules)
    ours, *others = case.systems
    for system in case.systems:
        times = batch_seconds(replies[system])
        median = statistics.median(times)
        measurement = Measurement(
            name="insert",
            system=system,
            unit="M keys/s",
            series=series[system],
            sizes=sizes_of(case.workload),
            versions=replies[system][0]["versions"],
            ratios=ratios(series, ours, others) if system == ours else {},
            notes={
                "rate_to_2m_keys": _early_rate(replies[system], case.workload.batch),
                "batch_seconds_median": round(median, 6),
                "batch_seconds_max": round(max(times), 6),
                "batch_max_over_median": round(max(times) / median, 2),
                "warm_memory": True,
            },
        )
        emit(measurement, rules)


def run(options: Options) -> None:
    """Print one line per size and system."""
    rules = options.rules
    rules = replace(
        rules,
        num_runs=_NUM_PAUSE_RUNS if options.is_quick else rules.num_runs,
        max_discards=min(rules.max_discards, _MAX_DISCARDS),
    )
    for case in matrix(options, PEERS):
        if options.is_quick or case.workload.rows > _SMALL_ROWS:
            run_case(case, rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
