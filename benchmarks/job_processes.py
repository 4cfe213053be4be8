"""The processes of the stage `job`: servers with workers, or trainers alone, told when to train."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import BenchmarkError, Sample, timed
from benchmarks.job_worker import STAGES
from benchmarks.processes import WorkerProcess
from benchmarks.server_processes import ServerCommand, running

_TASK = "benchmarks.job_task.Light"


@dataclass
class Costs:
    """What the processes used in one sample, for all steps of all workers.

    Attributes:
        num_steps: Worker steps.
        num_samples: Samples of the steps.
        rate: Samples per second, summed over the workers.
        worker_seconds: Processor time of the workers.
        server_seconds: Processor time of the servers.
        stages: Seconds of a step by stage, the mean of the workers.
        replies: What each worker answered.
    """

    num_steps: int
    num_samples: int
    rate: float
    worker_seconds: float
    server_seconds: float
    stages: Mapping[str, float]
    replies: Sequence[Mapping[str, Any]]

    def us_of_sample(self, seconds: float) -> float:
        """Return processor time as microseconds of a sample."""
        return seconds / self.num_samples * 1e6


@dataclass
class Processes:
    """Workers that run, and their servers.

    Args:
        workers: The workers.
        servers: The servers; none for trainers alone.

    Attributes:
        costs: What each sample took.
    """

    workers: Sequence[WorkerProcess]
    servers: Sequence[ServerCommand] = ()
    costs: list[Costs] = field(default_factory=list)
    _num_steps: int = 0

    def _call_all(self, do: str, **arguments: Any) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(len(self.workers)) as pool:
            calls = [pool.submit(worker.call, do, **arguments) for worker in self.workers]
            return [call.result() for call in calls]

    def _server_seconds(self) -> float:
        return sum(server.cpu_seconds() for server in self.servers)

    def train(self, seconds: float) -> Sample:
        """Let all workers train at once; return thousands of samples per second of all of them."""
        before = self._server_seconds()
        with timed() as window:
            replies = self._call_all("train", seconds=seconds)
        of_servers = self._server_seconds() - before
        of_workers = sum(reply["cpu_seconds"] for reply in replies)
        num_steps = sum(reply["num_steps"] for reply in replies)
        self._num_steps += num_steps
        sums = {
            stage: sum(reply["stages"][stage] for reply in replies) / num_steps for stage in STAGES
        }
        rate = sum(reply["num_samples"] / reply["seconds"] for reply in replies)
        num_samples = sum(reply["num_samples"] for reply in replies)
        self.costs.append(
            Costs(num_steps, num_samples, rate, of_workers, of_servers, sums, replies)
        )
        used = (of_servers + of_workers) / window.seconds
        return Sample(rate / 1e3, max(0.0, window.others_cores - used))

    def stop(self) -> None:
        """End the training; a job has counted all steps of its workers, each once."""
        replies = self._call_all("stop")
        if not self.servers:
            return
        counts = replies[0]["counts"]
        if counts["repeats"] or counts["lost_pushes"] or counts["steps"] < self._num_steps:
            raise BenchmarkError(
                f"[job] expected {self._num_steps} steps or more, each once, got {counts}"
            )


def settings_of(task: Mapping[str, Any]) -> list[str]:
    """Return the settings of a task as arguments of a command."""
    return [word for key, value in task.items() for word in ("--set", f"{key}={json.dumps(value)}")]


@contextlib.contextmanager
def processes(
    num_servers: int,
    num_workers: int,
    task: Mapping[str, Any],
    train: Mapping[str, Any] | None = None,
    *,
    chief: Mapping[str, Any] | None = None,
) -> Iterator[Processes]:
    """Run a job, or with no server trainers alone; they wait for `Processes.train`.

    Args:
        num_servers: Number of servers.
        num_workers: Number of workers, or of trainers.
        task: Settings of the task.
        train: Settings of the training.
        chief: Further settings of the training of worker 0.
    """
    with contextlib.ExitStack() as stack:
        commands = stack.enter_context(
            running(num_servers, is_ipc=True, task=[_TASK, *settings_of(task)])
        )
        workers = []
        for index in range(num_workers):
            more = (chief or {}) if index == 0 else {}
            options = {
                "task": dict(task),
                "train": {**(train or {}), **more},
                "servers": [command.address for command in commands],
                "worker": [index, num_workers],
            }
            worker = WorkerProcess("monolith", ["benchmarks.job_worker", json.dumps(options)])
            stack.callback(worker.close)
            workers.append(worker)
        yield Processes(workers, commands)
