"""Train a task with parameter servers as objects of the process: `local_train`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from monolith.cluster import LocalServers
from monolith.train.driver import Hook
from monolith.train.settings import TrainSettings
from monolith.train.task import Task
from monolith.train.trainer import Trainer


def local_train(
    task: Any,
    num_ps: int = 0,
    steps: int | None = 100,
    *,
    settings: TrainSettings | None = None,
    servers: LocalServers | None = None,
    hooks: Sequence[Hook] = (),
) -> Trainer:
    """Train a task with `num_ps` parameter servers in this process, and return its trainer.

    Rows and dense parameters do not depend on the number of servers.

    Args:
        task: a `Task`, its class, or parameters with `instantiate()`.
        num_ps: number of servers; 0 for tables in the trainer.
        steps: most steps; until the data ends if None.
        settings: how to train; `steps` is taken from here.
        servers: those of an earlier run, which this one continues; they stay open. Without them the
            trainer has servers of its own, and closes them.
        hooks: of the run.

    Returns:
        The trainer; `result` says how the run went. Close it.

    Raises:
        ValueError: `num_ps` is negative, or is not the number of the given servers.
        TypeError: what is given is no task.
    """
    if num_ps < 0 or (servers is not None and num_ps not in (0, len(servers))):
        expected = "num_ps >= 0" if servers is None else f"num_ps {len(servers)} or none"
        raise ValueError(f"[local_train] expected {expected}, got {num_ps}")
    instance = _as_task(task)
    settings = replace(settings or TrainSettings(), steps=steps)
    trainer = Trainer(instance, settings, num_ps if servers is None else servers, hooks)
    try:
        trainer.fit()
    except BaseException:
        trainer.close()
        raise
    return trainer


def _as_task(task: Any) -> Task:
    if hasattr(task, "instantiate"):
        task = task.instantiate()
    elif isinstance(task, type) and issubclass(task, Task):
        task = task()
    if not isinstance(task, Task):
        raise TypeError(
            f"[local_train] expected a Task, its class or its parameters, got {type(task).__name__}"
        )
    return task
