"""Jobs of two servers and two workers, each a process, against two trainers alone of one thread.

`job` has a light model with 26 features of dim 16, `job_click` the MLP of `click_model.py` (0.5 MB
of dense parameters on the servers). Job and trainers take turns; the rate of each is the sum of
its workers. With `depth` 1 the workers read rows ahead and push on a thread (`prefetch=1, push=1`).
`job_launch` is the time from `monolith launch` to the first step, `job_hold` the pause of the
worker that does not save, at a save of the chief.
"""

import contextlib
import functools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, BenchmarkError, Rules, Series, interleave, say
from benchmarks.job_processes import Costs, Processes, processes
from benchmarks.job_worker import STAGES
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage

_NUM = 2  # servers, workers, trainers
_ROWS, _QUICK_ROWS = 200_000, 2_000
_BATCH = 4_096
_SECONDS, _QUICK_SECONDS = 3.0, 0.3
_WARM_SECONDS = 2.0
_ROUNDS = 3
_AHEAD = {"prefetch": 1, "push": 1}
_FOLDER = ROOT / "build" / "benchmarks" / "job"
_SAVE_SECONDS = 2.0
_LAUNCH_LIMIT = 120.0

_LAUNCHED = """
import os, time
import torch
import monolith as ml

class Noted(ml.train.Hook):
    def after_run(self, context, results):
        path = os.environ["JOB_FIRST_STEP"]
        if not os.path.exists(path):
            with open(f"{path}.{os.getpid()}", "w") as file:
                file.write(repr(time.time()))
            os.replace(f"{path}.{os.getpid()}", path)

class Clicks(ml.Task):
    features = (ml.Feature("user", dim=16), ml.Feature("item", dim=16))

    def source(self, mode):
        samples = ml.data.parquet(self.settings.data[mode]).repeat(1000)
        return samples.batch(self.settings.batch_size)

    def build(self):
        return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def loss(self, model, inputs, batch):
        logit = model(inputs.matrix).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, batch.label)
        return loss, logit.sigmoid()

    def hooks(self):
        return [Noted()]
"""


def median_us(costs: Sequence[Costs], role: str) -> float:
    """Return the median microseconds of processor time of a sample."""
    seconds = [cost.us_of_sample(getattr(cost, f"{role}_seconds")) for cost in costs]
    return round(statistics.median(seconds), 2)


def stage_ms(costs: Sequence[Costs]) -> dict[str, float]:
    """Return the median milliseconds of each stage of a step."""
    return {
        f"{stage}_ms": round(statistics.median(cost.stages[stage] for cost in costs) * 1e3, 2)
        for stage in STAGES
    }


def staleness_of(costs: Sequence[Costs]) -> dict[str, float]:
    """Return the steps that lookups and dense parameters had missed."""
    replies = [reply for cost in costs for reply in cost.replies]
    return {
        "staleness_max": max(reply["staleness"] for reply in replies),
        "dense_staleness": round(statistics.mean(r["dense_staleness"] for r in replies), 2),
        "dense_staleness_max": max(reply["dense_staleness_max"] for reply in replies),
    }


def measure_model(name: str, task: Mapping[str, Any], options: Options) -> None:
    """Print the lines of a model: one step after the other, and ahead."""
    seconds = _QUICK_SECONDS if options.is_quick else _SECONDS
    rules = Rules(num_runs=1 if options.is_quick else _ROUNDS, max_discards=0)
    with contextlib.ExitStack() as stack:
        runs: dict[str, Processes] = {
            "job": stack.enter_context(processes(_NUM, _NUM, task)),
            "job_ahead": stack.enter_context(processes(_NUM, _NUM, task, _AHEAD)),
            "local": stack.enter_context(processes(0, _NUM, task)),
        }
        for run in runs.values():
            run.train(min(seconds, _WARM_SECONDS))  # every id has a row
            run.costs.clear()
        takes = {which: functools.partial(run.train, seconds) for which, run in runs.items()}
        series = interleave(takes, rules)
        for run in runs.values():
            run.stop()
    local = runs["local"].costs
    trainer_us = median_us(local, "worker")
    for depth, which in enumerate(("job", "job_ahead")):
        costs = runs[which].costs
        notes = {"worker_us": median_us(costs, "worker"), "server_us": median_us(costs, "server")}
        notes["trainer_us"] = trainer_us
        notes["cpu_ratio"] = round(trainer_us / (notes["worker_us"] + notes["server_us"]), 3)
        notes |= staleness_of(costs) | stage_ms(costs)
        notes |= {f"trainer_{stage}": value for stage, value in stage_ms(local).items()}
        facts = {"rows": task["rows"], "batch": task["batch_size"], "servers": _NUM}
        facts |= {"workers": _NUM, "depth": depth}
        Question(name, "k samples/s", facts, rules).answer(series, which, "local", notes=notes)


def hold_seconds(
    saves: Sequence[tuple[float, float]], steps: Sequence[tuple[float, float]]
) -> list[float]:
    """Return how much longer than others the longest step of a worker took at each save.

    Args:
        saves: Time of the end of each pause of the chief, and its seconds.
        steps: Time of the end of each step of the worker, and its seconds.
    """
    usual = statistics.median(seconds for _, seconds in steps)
    pauses = []
    for end, pause in saves:
        # The steps that were running, or held, at some time of the pause.
        longest = [s for at, s in steps if at >= end - pause and at - s <= end]
        if longest:
            pauses.append(max(0.0, max(longest) - usual))
    return pauses


def measure_hold(options: Options) -> None:
    """Print how long workers wait at a save."""
    rows = _QUICK_ROWS if options.is_quick else _ROWS
    task = {"rows": rows, "batch_size": _BATCH}
    seconds = 3 * _SAVE_SECONDS if options.is_quick else 7 * _SAVE_SECONDS
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir(parents=True)
    saving = {"checkpoint_dir": str(_FOLDER), "save_seconds": _SAVE_SECONDS, "full_every": 1}
    with processes(_NUM, _NUM, task, chief=saving) as run:
        run.train(_WARM_SECONDS)
        sample = run.train(seconds)
        chief, other = run.costs[-1].replies
        run.stop()
    shutil.rmtree(_FOLDER)
    pauses = hold_seconds(chief["saves"], other["steps"])
    if not pauses:
        raise BenchmarkError(f"[job_hold] expected saves within {seconds:g} seconds, got none")
    series = Series([pause * 1e3 for pause in pauses], [sample.others_cores] * len(pauses))
    notes = {"chief_ms": round(statistics.median(s for _, s in chief["saves"]) * 1e3, 1)}
    notes["step_ms"] = round(statistics.median(s for _, s in other["steps"]) * 1e3, 1)
    facts = {"rows": rows, "batch": _BATCH, "servers": _NUM, "workers": _NUM}
    Question("job_hold", "ms", facts, options.rules).answer({"hold": series}, "hold", notes=notes)


def launch_once(folder: str) -> tuple[float, float]:
    """Launch a job; return the seconds to its first step, and the processor time of its life."""
    first = Path(folder, "first")
    first.unlink(missing_ok=True)
    arguments = ["launch", "task.py", "--ps", str(_NUM), "--workers", str(_NUM)]
    arguments += ["--data", "train.parquet", "--set", "batch_size=1024"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.time()
    process = subprocess.Popen(
        [sys.executable, "-m", "monolith.cli.main", *arguments],
        cwd=folder,
        env={**os.environ, "JOB_FIRST_STEP": str(first)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not first.exists():
            if process.poll() is not None or time.time() - start > _LAUNCH_LIMIT:
                process.kill()
                raise BenchmarkError(
                    f"[job_launch] expected a step, got: {process.communicate()[1]}"
                )
            time.sleep(0.02)
        seconds = float(first.read_text()) - start
    finally:
        process.terminate()
        process.communicate(timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu


def measure_launch(options: Options) -> None:
    """Print the time from `monolith launch` to the first step of a worker."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "task.py").write_text(_LAUNCHED)
        ids = {"user": range(8192), "item": [i % 997 for i in range(8192)]}
        pq.write_table(
            pa.table({**ids, "label": [float(i % 3 == 0) for i in range(8192)]}),
            f"{folder}/train.parquet",
        )
        taken = [launch_once(folder) for _ in range(1 if options.is_quick else _ROUNDS)]
    series = Series([seconds for seconds, _ in taken], [0.0] * len(taken))
    notes = {"cpu_s": round(statistics.median(cpu for _, cpu in taken), 1)}
    facts = {"servers": _NUM, "workers": _NUM}
    Question("job_launch", "s", facts, options.rules).answer({"job": series}, "job", notes=notes)


def run(options: Options) -> None:
    """Print the lines of all parts."""
    rows = _QUICK_ROWS if options.is_quick else _ROWS
    task = {"rows": rows, "batch_size": _BATCH}
    say(f"[job] {_NUM} servers and {_NUM} workers against {_NUM} trainers alone")
    measure_model("job", task, options)
    measure_model("job_click", {**task, "is_click": True}, options)
    measure_hold(options)
    measure_launch(options)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
