"""Trains on two servers and two workers, then again with a server that is killed half-way.

Writes the clicks of the demo as Parquet files, a file per day, and holds the last day out. Both
runs are `monolith launch examples/clicks_task.py --ps 2 --workers 2`. In the second one this
program sends SIGKILL to a server: the launcher starts the server again, and the chief restores
its rows from the newest checkpoint.

Example: .venv/bin/python examples/demo_servers.py --days 40
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# Started as a file, Python looks for modules beside it; `examples` itself lies one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.clicks import BATCH, FEATURES, STEPS_PER_DAY, Batch, Clicks
from examples.clicks_task import SECONDS_PER_STEP, START_SECONDS

ROOT = Path(__file__).resolve().parent.parent
DAYS = 40
FOLDER = ROOT / "build" / "demo_servers"
KILLED = "ps-1"
AUC_SPREAD = 0.0021  # largest minus smallest AUC of four undisturbed runs: docs/jobs.md
END_SECONDS = 60  # that the launcher has to end its processes after a signal


@dataclass
class Job:
    """How one run ended.

    Attributes:
        name: Name of the run.
        auc: AUC on the day that was held out.
        num_steps: Number of steps of both workers.
        num_restarts: Number of processes that were started again.
        lost_pushes: Number of pushes that the killed server had done after the newest checkpoint.
        repeats: Number of samples that were trained more than once.
        seconds: Seconds from the start of the launcher to its end.
    """

    name: str
    auc: float
    num_steps: int
    num_restarts: int
    lost_pushes: int
    repeats: int
    seconds: float


def write_clicks(folder: Path, days: int) -> None:
    """Write a file per day, the last one as held-out data; keep files of an earlier call."""
    held_out = folder / "held_out.parquet"
    if held_out.exists():
        print(f"The clicks of {days} days and a held-out day are in {folder} already.")
        return
    print(f"Writing the clicks of {days} days and a held-out day to {folder}.")
    (folder / "train").mkdir(parents=True, exist_ok=True)
    stream, step = Clicks(), 0
    for day in range(days + 1):
        tables = []
        for step in range(day * STEPS_PER_DAY, (day + 1) * STEPS_PER_DAY):
            tables.append(table_of(next(stream), START_SECONDS + step * SECONDS_PER_STEP))
        path = held_out if day == days else folder / "train" / f"day_{day:02}.parquet"
        part = path.with_suffix(".part")  # a file that is there is whole
        pq.write_table(pa.concat_tables(tables), part)
        part.rename(path)


def table_of(batch: Batch, time_seconds: int) -> pa.Table:
    """Return a batch as columns of a Parquet file; `history` has a list of ids per sample."""
    columns: dict[str, Any] = {}
    for name in FEATURES:
        ids, offsets = (tensor.numpy() for tensor in batch.features[name])
        columns[name] = pa.array(ids)
        if name == "history":
            splits = pa.array(np.append(offsets, len(ids)), pa.int32())
            columns[name] = pa.ListArray.from_arrays(splits, columns[name])
    columns["click"] = pa.array(batch.labels.numpy())
    columns["time"] = pa.array(np.full(BATCH, time_seconds))
    return pa.table(columns)


def launch(name: str, clicks: Path, folder: Path, num_steps: int, *, with_kill: bool) -> Job:
    """Run the job; with a kill, end a server by SIGKILL after the checkpoint of half the steps."""
    shutil.rmtree(folder, ignore_errors=True)
    command = ["monolith", "launch", "examples/clicks_task.py", "--ps", "2", "--workers", "2"]
    command += ["--data", f"train={clicks}/train", "--data", f"eval={clicks}/held_out.parquet"]
    command += ["--checkpoints", f"{folder}/saves", "--save-every", str(max(1, num_steps // 12))]
    command += ["--run", str(folder / "run")]
    print(f"\n{name}:\n$ {' '.join(command)}", flush=True)
    start = time.monotonic()
    program = [sys.executable, "-m", "monolith.cli.main", *command[1:], "--json"]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            end = follow(process, folder / "saves", num_steps // 2 if with_kill else None)
        finally:
            stop(process)
    if end.get("status") != 0:
        sys.exit(f"The job failed: {end.get('reason', 'no end')}; its logs: {folder}/run/logs")
    result = end["result"]
    return Job(
        name,
        result["eval"]["auc"],
        result["job"]["steps"],
        end["restarts"],
        result["job"]["lost_pushes"],
        result["job"]["repeats"],
        time.monotonic() - start,
    )


def follow(process: subprocess.Popen[str], saves: Path, kill_step: int | None) -> dict[str, Any]:
    """Read what the launcher reports; return its last report.

    Args:
        process: The launcher.
        saves: Folder of the checkpoints.
        kill_step: Step of the checkpoint after which a server gets SIGKILL; None kills none.
    """
    assert process.stdout is not None
    last: dict[str, Any] = {}
    for line in process.stdout:
        last = json.loads(line)
        if kill_step is not None:
            (pid,) = (role["pid"] for role in last["roles"] if role["name"] == KILLED)
            Thread(target=kill_after, args=(process, pid, saves, kill_step)).start()
            kill_step = None
        print(f"  {last['seconds']:4.1f} s  step {last['step']:3}  {last['rows']:7,} rows", end="")
        states = (f"{role['name']} {role['state']}" for role in last["roles"])
        print(f"  {', '.join(states)}", flush=True)
    return last


def kill_after(process: subprocess.Popen[str], pid: int, saves: Path, step: int) -> None:
    """Send SIGKILL to a server when a checkpoint of a step, or of a later one, is complete."""
    while process.poll() is None:
        names = (path.name for path in saves.glob("model.ckpt-*.manifest.json"))
        steps = [int(name.removeprefix("model.ckpt-").partition(".")[0]) for name in names]
        if max(steps, default=0) >= step:
            print(f"  >>>>    after the checkpoint of step {max(steps)}: kill -9 {pid}, {KILLED}")
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.02)


def stop(process: subprocess.Popen[str]) -> None:
    """End a launcher that still runs, as after Ctrl-C; it ends its processes."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        process.kill()


def is_within(jobs: Sequence[Job]) -> bool:
    """Return whether the AUC of the second run differs by at most the spread of the first ones."""
    return abs(jobs[1].auc - jobs[0].auc) <= AUC_SPREAD


def summary(jobs: Sequence[Job]) -> str:
    """Return a table of the runs, and what it shows."""
    lines = ["run                 AUC     steps  restarts  lost pushes  trained again  seconds"]
    for job in jobs:
        lines.append(
            f"{job.name:18}  {job.auc:.4f}  {job.num_steps:5}  {job.num_restarts:8}  "
            f"{job.lost_pushes:11}  {job.repeats:13,}  {job.seconds:7.1f}"
        )
    difference = jobs[1].auc - jobs[0].auc
    word = "within" if is_within(jobs) else "NOT within"
    return "\n".join(
        [
            *lines,
            f"The AUC of the killed run differs by {difference:+.4f}, {word} the spread of "
            f"undisturbed runs ({AUC_SPREAD}).",
        ]
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=DAYS, help=f"days to train ({DAYS})")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder (build/demo_servers)")
    options = parser.parse_args(arguments)
    if options.days < 1:
        parser.error(f"expected --days of at least 1, got {options.days}")
    return options


def main() -> None:
    """Write the data, run both jobs, and compare them: exit with status 1 if they differ."""
    options = parse(sys.argv[1:])
    start, folder = time.monotonic(), options.folder.resolve()
    clicks, num_steps = folder / f"clicks_{options.days}", options.days * STEPS_PER_DAY
    write_clicks(clicks, options.days)
    jobs = [
        launch("undisturbed", clicks, folder / "undisturbed", num_steps, with_kill=False),
        launch("one server killed", clicks, folder / "killed", num_steps, with_kill=True),
    ]
    print(f"\n{summary(jobs)}")
    print(f"Done in {time.monotonic() - start:.0f} s. Logs: {folder}/killed/run/logs")
    print(f"Next: monolith inspect {folder}/killed/saves")
    if not is_within(jobs):
        sys.exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        main()
    except KeyboardInterrupt:
        print("Stopped before the end; the launcher has ended its processes.", file=sys.stderr)
        sys.exit(130)
