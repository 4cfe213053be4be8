"""Measures every stage and compares it with the targets.

python benchmarks/run.py --quick                  all stages on small tables, under 2 minutes
python benchmarks/run.py                          the real sizes, under 15 minutes
python benchmarks/run.py --peers --only lookup    one stage, beside TFRA and FBGEMM
python benchmarks/run.py --history lookup         what earlier runs of a stage measured

The figures are added to benchmarks/results/<stage>.json, with machine, commit and date. A tree with
changes is measured with --no-record only.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Started as a file, Python looks for modules beside it; `benchmarks` itself lies one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import history, targets
from benchmarks.harness import ROOT, say
from tools.commit import TreeError, clean_commit

RESULTS = "benchmarks/results"

STAGES = (
    "lookup",
    "bags",
    "insert",
    "update",
    "memory",
    "scaling",
    "small_tables",
    "roofline",
    "precision",
    "optimizers",
    "dense_optimizers",
    "admission",
    "eviction",
    "disk",
    "checkpoint",
    "changes",
    "links",
    "background_saves",
    "imports",
    "end_to_end",
    "dlrm",
    "small_bag",
    "group",
    "servers",
    "wire",
    "features",
    "packing",
    "input",
    "stream",
    "ahead",
    "layout",
    "queues",
    "records",
    "trainer",
    "device",
    "metrics",
    "job",
    "job_costs",
    "ranks",
    "rank_costs",
    "joiner",
)


def parse() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--peers", action="store_true", help="also TFRA and FBGEMM (install.sh)")
    parser.add_argument("--only", metavar="NAME", choices=STAGES, help=f"one of {STAGES}")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="write all JSON lines to this file, and record nothing",
    )
    parser.add_argument("--no-record", action="store_true", help="print only; any tree will do")
    parser.add_argument("--history", metavar="NAME", choices=STAGES, help="print earlier runs")
    return parser.parse_args()


def run_stage(stage: str, flags: list[str]) -> tuple[list[dict[str, Any]], bool]:
    """Run a stage in a process of its own; its lines, and whether it ended well."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{stage}", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for text in process.stdout:
        print(text, end="", flush=True)
        lines.append(json.loads(text))
    is_good = process.wait() == 0
    took = f"{time.perf_counter() - start:.0f} s"
    say(f"[{stage}] done in {took}" if is_good else f"[{stage}] FAILED after {took}")
    return lines, is_good


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Replace a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    beside.replace(path)


def main() -> int:
    """Run the stages, record the figures, print the table of targets."""
    options = parse()
    folder = ROOT / RESULTS
    if options.history is not None:
        runs = history.read_runs(folder / f"{options.history}.json")
        print(history.table(options.history, runs))
        return 0
    is_recorded = not (options.quick or options.no_record or options.out)
    try:
        advice = "commit them, or measure with --no-record"
        commit = clean_commit("benchmarks", advice, ignore=RESULTS) if is_recorded else None
    except TreeError as error:
        say(str(error))
        return 2
    flags = ["--quick"] * options.quick + ["--peers"] * options.peers
    lines, failed = [], []
    for stage in [options.only] if options.only else STAGES:
        measured, is_good = run_stage(stage, flags)
        lines += measured
        if not is_good:
            failed.append(stage)
        elif commit is not None:
            history.add_run(folder / f"{stage}.json", history.describe_run(measured, commit))
    if options.out is not None:
        write_lines(options.out, lines)
    say("\n" + targets.table(lines))
    noisy = sum(not line["is_quiet"] for line in lines)
    if noisy:
        say(f"\n{noisy} of {len(lines)} measurements were disturbed by other processes (is_quiet)")
    if options.quick:
        say("--quick: the sizes are not those of the targets; run without it for real figures")
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
