"""A worker of a job, from its first call to its end; worker 0 is the chief."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from monolith.checkpoint import Checkpoint, find
from monolith.cluster.job.dense_shard import describe_features
from monolith.cluster.job.job_client import JobClient
from monolith.cluster.remote_servers import RemoteServers
from monolith.cluster.server_host import config_text
from monolith.cluster.servers_engine import ServersEngine
from monolith.control import ControlOptions
from monolith.data import Batch
from monolith.errors import AbortedError
from monolith.observe.metrics import MetricsSink
from monolith.train.driver import Hook
from monolith.train.run_metrics import FitResult
from monolith.train.settings import TrainSettings
from monolith.train.task import Task
from monolith.train.trainer import Trainer

FIRST_STEP = "first_step"
"""Text of a job: the number of steps with which it began."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker waits for others, and how its job is controlled.

    Args:
        ready_seconds: Seconds to wait for the chief to restore or initialise the servers.
        hold_seconds: Seconds that a save waits for workers to hold their pushes.
        end_seconds: Seconds that the chief waits at the end for the other workers.
        control: Where the controller of the job listens, in the chief; None starts none.
    """

    ready_seconds: float = 600.0
    hold_seconds: float = 30.0
    end_seconds: float = 1800.0
    control: ControlOptions | None = None


@dataclass(frozen=True)
class JobReport:
    """The result of a worker.

    Attributes:
        result: Result of the worker's own training; None if the job had ended before.
        counts: Numbers of the whole job at the end of this worker: steps, samples, repeats,
            lost_pushes and dropped.
        evaluation: Result of `then`, in the chief.
    """

    result: FitResult
    counts: Mapping[str, int]
    evaluation: Any = None


def run_worker(
    task: Task,
    settings: TrainSettings,
    servers: RemoteServers,
    *,
    source: Iterable[Batch] | None = None,
    checkpoint: Checkpoint | None = None,
    hooks: Sequence[Hook] = (),
    metrics: MetricsSink | None = None,
    options: WorkerOptions | None = None,
    began: Callable[[Trainer], None] | None = None,
    then: Callable[[Trainer], Any] | None = None,
    ends_servers: bool = True,
) -> JobReport:
    """Train as a worker of a job until the job's data or steps end.

    The chief gives empty servers the values of a checkpoint, or those with which the task begins;
    servers that have values keep them. The other workers wait for that. At the end the chief waits
    for the others, saves, and lets the servers end.

    Args:
        task: Task of the job, the same in all processes.
        settings: Options of the training; only the chief saves and evaluates.
        servers: Servers of the job, with the number of this worker.
        source: Training data in place of the task's, such as a `ServiceSource`.
        checkpoint: Checkpoint from which a new job goes on; only the chief uses it.
        hooks: Hooks of this worker.
        metrics: Sink of this worker.
        options: How to wait, and the controller; None takes the defaults.
        began: Called before the first step; it may change `Trainer.hooks`.
        then: Called in the chief after the last save, before the servers end.
        ends_servers: Whether the chief lets the servers end; otherwise the caller does.

    Raises:
        InvalidArgumentError: The processes have different tasks, settings or numbers of workers.
        AbortedError: This worker was given up; start it again.
        DeadlineExceededError: The chief did not come.
    """
    options = options or WorkerOptions()
    job = JobClient(servers, hold_seconds=options.hold_seconds)
    job.end_seconds = options.end_seconds
    with job:
        settings = replace(settings, max_recoveries=0)  # a worker that fails joins again
        if not job.is_chief:
            settings = replace(settings, checkpoint_dir=None, eval_every=0, early_stop=None)
        control = options.control if job.is_chief else None
        with Trainer(
            task, settings, hooks=hooks, metrics=metrics, job=job, control=control
        ) as trainer:
            assert trainer.served is not None
            job.check_task(trainer.served.lines)
            if job.is_chief:
                servers.recovery = lambda: _newest(trainer)
            job.join(_clients_of(trainer), _facts_of(trainer))
            if job.is_chief:
                _prepare(trainer, job, checkpoint)
            else:
                job.await_ready(options.ready_seconds)
                _follow(trainer, job)
            if began is not None:
                began(trainer)
            result = trainer.fit(source)
            counts = job.describe()[0]["counts"]
            evaluation = None if then is None or not job.is_chief else then(trainer)
        if job.is_chief and ends_servers:
            job.end()
    return JobReport(result, counts, evaluation)


def _clients_of(trainer: Trainer) -> list[int]:
    """Return the numbers of the callers with which a trainer writes to tables."""
    engine = trainer.features.pending.engine
    return engine.clients if isinstance(engine, ServersEngine) else []


def _facts_of(trainer: Trainer) -> dict[str, list[str]]:
    """Return what must be equal in all workers."""
    assert trainer.served is not None
    tables = trainer.features.tables.values()
    settings = trainer.settings
    return {
        "features": describe_features(trainer.task.features),
        "tables": [config_text(table.config) for table in tables],
        "dense": trainer.served.lines,
        "settings": [f"steps {settings.steps}", f"accumulate {settings.accumulate}"],
    }


def _newest(trainer: Trainer) -> str | None:
    """Return the newest complete checkpoint of the job, also of a chief before this one."""
    if trainer.state.checkpoint is not None or trainer.settings.checkpoint_dir is None:
        return trainer.state.checkpoint
    found = find(trainer.settings.checkpoint_dir)
    return None if found is None else found.prefix


def _prepare(trainer: Trainer, job: JobClient, checkpoint: Checkpoint | None) -> None:
    """Let all servers have values: those of a checkpoint, of the task, or their own."""
    served = trainer.served
    assert served is not None
    is_ready = [facts["is_ready"] for facts in job.describe()]
    if any(is_ready):
        _go_on(trainer, job, is_ready)
        return
    if checkpoint is not None:
        trainer.restore(checkpoint.prefix)
    else:
        served.send_all()
    job.set_text(FIRST_STEP, str(trainer.state.first))
    job.first_step = trainer.state.first
    served.send_untrained()
    if checkpoint is None and trainer.settings.checkpoint_dir is not None:
        trainer.save(trainer.settings.checkpoint_dir)  # for servers that are lost before the first
    for server in range(len(job.servers)):
        job.set_ready(server)


def _go_on(trainer: Trainer, job: JobClient, is_ready: Sequence[bool]) -> None:
    """Go on with a job whose chief was lost; servers that came back meanwhile are restored."""
    assert trainer.served is not None
    missing = [server for server, ready in enumerate(is_ready) if not ready]
    prefix = _newest(trainer)
    if missing and prefix is None:
        raise AbortedError(
            f"[run_worker] expected servers with values, got servers {missing} that came back "
            "empty, and no checkpoint of this job; save checkpoints"
        )
    for server in missing:
        assert prefix is not None
        job.restore_server(server, Checkpoint(prefix))
    _log.warning("the chief came back; servers %s are restored, the others go on", missing)
    _follow(trainer, job)
    job.set_text(FIRST_STEP, str(job.first_step))  # again if server 0 comes back empty
    if prefix is not None:
        trainer.state.note_checkpoint(prefix)
        trainer.served.read_untrained(Checkpoint(prefix))
    trainer.served.send_untrained()


def _follow(trainer: Trainer, job: JobClient) -> None:
    """Begin with the values of the servers."""
    assert trainer.served is not None
    trainer.served.take_untrained()
    trainer.served.fetch()
    trainer.served.refresh()
    job.first_step = int(job.text(FIRST_STEP) or 0)
    trainer.run.global_step = job.num_steps
