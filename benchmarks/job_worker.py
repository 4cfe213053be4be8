"""A worker of the stage `job`, or a trainer alone: trains for some seconds whenever it is told to.

Commands come on stdin and answers go to stdout, a JSON line each (`processes.WorkerProcess`).
Between two samples the worker waits in the sink of its measurements, after a report.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

import monolith as ml
from benchmarks.job_task import Light, LightSettings
from monolith.cluster.zmq.connect import connect_servers
from monolith.train.driver import Hook, StepContext, StepResults
from monolith.train.roles.worker import run_worker

REPORT_STEPS = 20
STAGES = ("wait", "lookup", "forward", "backward", "update")


class StepLog(Hook):
    """The end of each step, its duration, and the steps that its dense parameters had missed."""

    def __init__(self) -> None:
        self.trainer: ml.Trainer | None = None
        self.steps: list[tuple[float, float]] = []  # (time of the end, seconds since the last end)
        self.staleness: list[int] = []

    def follow(self, trainer: ml.Trainer) -> None:
        """Look at the dense parameters of a trainer."""
        self.trainer = trainer

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Note a step."""
        now = time.time()
        self.steps.append((now, now - self.steps[-1][0] if self.steps else 0.0))
        served = None if self.trainer is None else self.trainer.served
        if served is not None:
            self.staleness.append(served.staleness)


class TurnSink:
    """A sink that adds up what a run measures, and lets the run wait between two samples.

    Args:
        log: What is noted of each step.
        batch: Samples of a step.
    """

    def __init__(self, log: StepLog, batch: int) -> None:
        self._log, self._batch = log, batch
        self._replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # what libraries print goes to stderr
        self._gauges: dict[str, float] = {}
        self._seconds = 0.0
        self._end = 0.0
        self._is_over = False
        self._clear()

    def _clear(self) -> None:
        self._sums = dict.fromkeys(STAGES, 0.0)
        self._num_steps = self._staleness = 0
        self._saves: list[tuple[float, float]] = []  # (time, seconds of the pause)
        self._log.steps.clear()
        self._log.staleness.clear()
        self._start, self._cpu = time.perf_counter(), time.process_time()

    # The sink

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Keep a figure of the interval."""
        self._gauges[name] = value

    def count(self, name: str, number: float, tags: Mapping[str, str]) -> None:
        """Take the number of steps of the interval, whose figures are known by now."""
        if name == "run/steps" and number:
            self._num_steps += int(number)
            for stage in STAGES:
                self._sums[stage] += number * self._gauges.get(f"step/{stage}_seconds", 0.0)
            self._staleness = max(self._staleness, int(self._gauges["train/staleness"]))

    def time(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Take the pause of a save."""
        if name == "run/checkpoint_pause":
            self._saves.append((time.time(), value / 1e6))

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Do nothing."""

    def flush(self, step: int) -> None:
        """Answer at the end of a sample, and wait for the next one."""
        now = time.perf_counter()
        if self._is_over or (self._seconds and now - self._start < self._seconds):
            return
        command: dict[str, Any] = {"do": "stop"}
        with contextlib.suppress(BrokenPipeError):  # who asked is gone
            if self._seconds:
                self._answer(now - self._start, step)
            command = json.loads(sys.stdin.readline() or '{"do": "stop"}')
        if command["do"] == "stop":
            self._is_over = True
            signal.raise_signal(signal.SIGTERM)
            return
        self._seconds = command["seconds"]
        self._clear()

    def close(self) -> None:
        """Do nothing."""

    def _answer(self, seconds: float, step: int) -> None:
        steps, staleness = self._log.steps[1:], self._log.staleness
        self.reply(
            {
                "seconds": seconds,
                "cpu_seconds": time.process_time() - self._cpu,
                "num_steps": self._num_steps,
                "num_samples": self._num_steps * self._batch,
                "step": step,
                "loss": self._gauges["train/loss"],
                "stages": self._sums,
                "staleness": self._staleness,
                "dense_staleness": sum(staleness) / max(1, len(staleness)),
                "dense_staleness_max": max(staleness, default=0),
                "saves": self._saves,
                "steps": steps,
            }
        )

    def reply(self, value: Mapping[str, Any]) -> None:
        """Write an answer."""
        self._replies.write(json.dumps(value) + "\n")
        self._replies.flush()


def main(options: Mapping[str, Any]) -> None:
    """Train until stdin ends or has the command "stop".

    Args:
        options: "task" and "train": settings; "servers": addresses, none for a trainer alone;
            "worker": number of the worker, and the number of workers.
    """
    torch.set_num_threads(1)
    task = Light(LightSettings(**options["task"]))
    settings = ml.TrainSettings(threads=1, log_every=REPORT_STEPS, **options["train"])
    index, num_workers = options["worker"]
    log = StepLog()
    sink = TurnSink(log, task.settings.batch_size)
    if not options["servers"]:
        own = task.batches()[index::num_workers]  # as many as a worker of the job has
        with ml.Trainer(task, settings, hooks=[log], metrics=sink) as trainer:
            trainer.fit(batch for _ in iter(int, 1) for batch in own)
        sink.reply({})
        return
    with connect_servers(options["servers"], worker=(index, num_workers)) as servers:
        report = run_worker(task, settings, servers, hooks=[log], metrics=sink, began=log.follow)
    sink.reply({"counts": dict(report.counts)})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
