"""Readers from 1 to 2 threads, beside a bare gather; and the waits of a reader beside a writer."""

import functools
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import Rules, Sample, Series, interleave, say
from benchmarks.question import Question
from benchmarks.readers import NUM_READERS, Bench, Call, Loop, measure_beside, rate, run_threads
from benchmarks.stage import QUICK_ROWS, Options, run_stage, sizes_of
from benchmarks.workload import Workload

_DIM = 16
_WRITER_ROWS = 2_000_000


def measure_readers(bench: Bench, rules: Rules) -> None:
    """Scaling of lookups and of the gather, taken in turns."""

    def take(calls: list[Call]) -> Sample:
        loops, others_cores = run_threads(calls, rules.sample_seconds)
        return Sample(rate(loops, bench.workload.batch), others_cores)

    makers = {"monolith": bench.lookup_call, "gather": bench.gather_call}
    contenders = {
        f"{name}/{readers}": functools.partial(take, [make(thread) for thread in range(readers)])
        for name, make in makers.items()
        for readers in (1, NUM_READERS)
    }
    for warm_up in contenders.values():
        warm_up()
    series = interleave(contenders, rules)
    scaling = {
        name: _scaling(series[f"{name}/1"], series[f"{name}/{NUM_READERS}"]) for name in makers
    }
    sizes = sizes_of(bench.workload, bench.distribution)
    question = Question("scaling", f"times from 1 to {NUM_READERS} readers", sizes, rules)
    for name in makers:
        medians = [statistics.median(series[f"{name}/{r}"].values) for r in (1, NUM_READERS)]
        notes = {"million_keys_per_second": [round(median, 2) for median in medians]}
        question.answer(scaling, name, "gather", system=name, notes=notes)


def _scaling(one: Series, several: Series) -> Series:
    return Series(
        [b / a for a, b in zip(one.values, several.values, strict=True)],
        one.others_cores + several.others_cores,
        one.num_discarded + several.num_discarded,
    )


def measure_writer(workload: Workload, rules: Rules) -> None:
    """A reader alone and beside a writer, in turns.

    The longest wait is a maximum over the table's life, so every window has a new table, and the
    windows in which no thread was pre-empted decide; without one, nothing was measured. The table
    counts waits and keeps the longest, so percentiles of the waits cannot be reported.
    """
    windows: list[dict[str, Any]] = []

    def take(with_writer: bool) -> Sample:
        bench = Bench(workload, "zipf")
        calls = [bench.lookup_call(), *([bench.update_call()] if with_writer else [])]
        loops, others_cores = run_threads(calls, rules.sample_seconds)
        if with_writer:
            windows.append(_waits(loops, bench))
        bench.table.close()
        return Sample(rate(loops[:1], workload.batch), others_cores)

    sizes = sizes_of(workload, "zipf")
    measure_beside("scaling_writer", take, sizes, lambda: waits_summary(windows), rules)


def _waits(loops: Sequence[Loop], bench: Bench) -> dict[str, Any]:
    """What one window shows; the second loop is the writer."""
    stats, writer = bench.table.stats(), loops[1]
    return {
        "num_waits": stats["reader_waits"],
        "wait_max_ns": stats["reader_wait_max_ns"],
        "num_preemptions": sum(loop.num_preemptions for loop in loops),
        "row_update_ns": writer.seconds * 1e9 / (writer.num_calls * bench.workload.batch),
    }


def waits_summary(windows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Waits of all windows, and the longest of those without pre-emption; None without any."""
    calm = [window["wait_max_ns"] for window in windows if window["num_preemptions"] == 0]
    return {
        "reader_waits": sum(window["num_waits"] for window in windows),
        "reader_wait_max_ns": max(window["wait_max_ns"] for window in windows),
        "calm_wait_max_ns": max(calm, default=None),
        "row_update_ns": round(statistics.median(w["row_update_ns"] for w in windows), 1),
        "num_preemptions": sum(window["num_preemptions"] for window in windows),
        "num_calm_windows": len(calm),
    }


def run(options: Options) -> None:
    """Print the scaling at each size, then the waits."""
    for rows in [QUICK_ROWS] if options.is_quick else [2_000_000, 20_000_000]:
        say(f"[scaling] {rows:,} rows, dim {_DIM}: 1 and {NUM_READERS} readers, beside a gather")
        bench = Bench(Workload(rows, _DIM, threads=1), "uniform")
        measure_readers(bench, options.rules)
        bench.table.close()
    rows = QUICK_ROWS if options.is_quick else _WRITER_ROWS
    say(f"[scaling] {rows:,} rows, dim {_DIM}: a reader beside a writer")
    measure_writer(Workload(rows, _DIM, threads=1), options.rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
