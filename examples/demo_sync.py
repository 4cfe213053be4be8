"""Trains on two synchronous ranks, and in one process on the same batches, and compares.

Writes the clicks of the demo as Parquet files, and the last day as held-out data. One process
trains on whole batches; each of two ranks trains on its halves of the same batches. Both evaluate
every two days. For the first four days the AUC is equal within the rounding of float32 sums; after
that rounding grows in the model, as it does between any two orders of the same sums.

Example: .venv/bin/python examples/demo_sync.py --days 20
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

# Started as a file, Python looks for modules beside it; `examples` itself lies one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.clicks import BATCH, STEPS_PER_DAY, Clicks
from examples.clicks_task import SECONDS_PER_STEP, START_SECONDS
from examples.demo_servers import ROOT, stop, table_of

RANKS, DAYS = 2, 20
FOLDER = ROOT / "build" / "demo_sync"
EVAL_EVERY = 2 * STEPS_PER_DAY
EQUAL_STEPS = 4 * STEPS_PER_DAY  # until then AUCs differ by rounding alone: docs/sync.md
EQUAL_AUC, CLOSE_AUC = 1e-6, 2e-3


@dataclass
class Run:
    """What one run has reported.

    Attributes:
        name: Name of the run.
        aucs: Step -> AUC of the held-out day.
        num_rows: Number of rows of all tables at the end.
        seconds: Seconds of training and evaluations.
    """

    name: str
    aucs: dict[int, float]
    num_rows: int
    seconds: float


def write_clicks(folder: Path, days: int) -> None:
    """Write whole batches, the halves of the ranks, and a held-out day; keep a finished folder."""
    if folder.exists():
        print(f"The clicks of {days} days and a held-out day are in {folder} already.")
        return
    print(f"Writing the clicks of {days} days and a held-out day to {folder}.")
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    times = (START_SECONDS + step * SECONDS_PER_STEP for step in range((days + 1) * STEPS_PER_DAY))
    tables = [table_of(batch, time) for time, batch in zip(times, Clicks(), strict=False)]
    train, held_out = tables[:-STEPS_PER_DAY], tables[-STEPS_PER_DAY:]
    files = {"whole/all.parquet": train, "held_out.parquet": held_out}
    for rank in range(RANKS):
        own = [table.slice(rank * BATCH // RANKS, BATCH // RANKS) for table in train]
        files[f"divided/rank_{rank}.parquet"] = own
    for name, parts in files.items():
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables(parts), part / name)
    part.rename(folder)  # a folder that is there is whole


def run(name: str, words: Sequence[str], clicks: Path, data: str) -> Run:
    """Run a command of `monolith` on the clicks of a folder, and return what it reported."""
    command = [*words[:1], "examples/clicks_task.py", *words[1:]]
    command += ["--data", f"{clicks}/{data}", "--data", f"eval={clicks}/held_out.parquet"]
    command += ["--set", "train.threads=1", "--set", f"train.eval_every={EVAL_EVERY}"]
    print(f"\n{name}:\n$ monolith {' '.join(command)}", flush=True)
    program = [sys.executable, "-m", "monolith", *command, "--json"]
    with subprocess.Popen(
        program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            printed, errors = process.communicate()
        finally:
            stop(process)
    if process.returncode:
        sys.exit(f"The run failed:\n{errors}")
    last: dict[str, Any] = json.loads(printed.splitlines()[-1])
    result = last.get("result", last)
    aucs = {int(step): figures["auc"] for step, figures in result["evaluations"].items()}
    for step, auc in aucs.items():
        print(f"  step {step:3}  AUC {auc:.7f}")
    return Run(name, aucs, result["figures"]["num_rows"], result["seconds"])


def limit(step: int) -> float:
    """Return the largest difference of AUC after a step."""
    return EQUAL_AUC if step <= EQUAL_STEPS else CLOSE_AUC


def are_equal(one: Run, two: Run) -> bool:
    """Return whether two runs have the same rows, and the same AUC within the limits."""
    is_equal = one.num_rows == two.num_rows and one.aucs.keys() == two.aucs.keys()
    return is_equal and all(abs(two.aucs[s] - auc) <= limit(s) for s, auc in one.aucs.items())


def summary(one: Run, two: Run) -> str:
    """Return a table of the evaluations of both runs, and what it shows."""
    lines = [f"step  {one.name:>11}  {two.name:>11}  difference  at most"]
    for step in sorted(one.aucs.keys() & two.aucs.keys()):
        first, second = one.aucs[step], two.aucs[step]
        lines.append(
            f"{step:4}  {first:11.7f}  {second:11.7f}  {second - first:+10.0e}  {limit(step):7.0e}"
        )
    lines.append(f"rows  {one.num_rows:11,}  {two.num_rows:11,}")
    lines.append(f"time  {one.seconds:9.1f} s  {two.seconds:9.1f} s")
    word = "train" if are_equal(one, two) else "do NOT train"
    return "\n".join([*lines, f"{RANKS} ranks {word} what one process trains."])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=DAYS, help=f"days to train ({DAYS})")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder (build/demo_sync)")
    options = parser.parse_args(arguments)
    if options.days < 2:
        parser.error(f"expected --days of at least 2, got {options.days}")
    return options


def main() -> None:
    """Write the data, train both ways, and compare: exit with status 1 if the results differ."""
    options = parse(sys.argv[1:])
    start, folder = time.monotonic(), options.folder.resolve()
    clicks = folder / f"clicks_{options.days}"
    write_clicks(clicks, options.days)
    ranks = ["launch", "--ranks", str(RANKS), "--set", f"batch_size={BATCH // RANKS}"]
    one = run("one process", ["train"], clicks, "whole")
    two = run(f"{RANKS} ranks", ranks, clicks, "divided")
    print(f"\n{summary(one, two)}")
    print(f"Done in {time.monotonic() - start:.0f} s. Next: docs/sync.md")
    if not are_equal(one, two):
        sys.exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        main()
    except KeyboardInterrupt:
        print("Stopped before the end; the launcher has ended its processes.", file=sys.stderr)
        sys.exit(130)
