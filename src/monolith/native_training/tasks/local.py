"""Train a task in this process, with parameter servers as its objects: `local_train`."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from monolith.checkpoint import find
from monolith.cluster import LocalServers
from monolith.native_training.tasks.native_task import NativeTask
from monolith.native_training.util.run_state import use_servers
from monolith.observe.metrics import MetricsSink
from monolith.train.driver import Hook
from monolith.train.run_state import seed_all
from monolith.train.settings import WAIT, TrainSettings
from monolith.train.task import Task
from monolith.train.trainer import Trainer


def local_train(
    task: Any,
    num_ps: int = 0,
    model_dir: str | None = None,
    steps: int | None = 100,
    save_checkpoints_steps: int = 50,
    *,
    remove_model_dir_if_exists: bool = False,
    settings: TrainSettings | None = None,
    servers: LocalServers | None = None,
    hooks: Sequence[Hook] = (),
    metrics: MetricsSink | None = None,
) -> Trainer:
    """Train a task with `num_ps` parameter servers in this process, and return its trainer.

    Rows and dense parameters do not depend on the number of servers.

    Args:
        task: a `Task`, its class, or parameters with `instantiate()`.
        num_ps: number of servers; 0 for tables in the trainer.
        model_dir: folder for checkpoints. A call goes on from the newest checkpoint there.
        steps: most steps of this call; until the data ends if None.
        save_checkpoints_steps: steps between two checkpoints in `model_dir`; parameters of the task
            may set another pace.
        remove_model_dir_if_exists: whether `model_dir` is deleted first, with all that is in there.
        settings: options of the trainer, but for those that are arguments here; without them, each
            checkpoint of the pace is saved, if need be after a wait for the one before.
        servers: those of an earlier run, which this one continues; they stay open. Without them the
            trainer has servers of its own, and closes them.
        hooks: hooks of the run.
        metrics: sink of the measurements, which the caller closes.

    Returns:
        The trainer; `result` says how the run went. Close it.

    Raises:
        ValueError: `num_ps` is negative, or is not the number of `servers`.
        TypeError: `task` is no task.
    """
    if num_ps < 0 or (servers is not None and num_ps not in (0, len(servers))):
        expected = "num_ps >= 0" if servers is None else f"num_ps {len(servers)} or none"
        raise ValueError(f"[local_train] expected {expected}, got {num_ps}")
    settings = replace(settings or TrainSettings(busy_save=WAIT), steps=steps)
    seed_all(settings.seed)  # a native task makes its dense model in its constructor
    instance = _as_task(task)
    if model_dir is not None:
        if remove_model_dir_if_exists:
            shutil.rmtree(model_dir, ignore_errors=True)
        settings = replace(
            settings, checkpoint_dir=model_dir, save_every=save_checkpoints_steps, save_seconds=None
        )
    trainer = Trainer(
        instance, settings, num_ps if servers is None else servers, hooks, metrics=metrics
    )
    use_servers(trainer.run, trainer.servers)
    try:
        if model_dir is not None and find(model_dir) is not None:
            trainer.restore(model_dir)
            trainer.state.first = trainer.state.step  # `steps` are those of this call
        trainer.fit()
    except BaseException:
        trainer.close()
        raise
    return trainer


def _as_task(task: Any) -> Task:
    if hasattr(task, "instantiate"):
        task = task.instantiate()
    elif isinstance(task, type) and issubclass(task, Task):
        task = task.params().instantiate() if issubclass(task, NativeTask) else task()
    if not isinstance(task, Task):
        raise TypeError(
            f"[local_train] expected a Task, its class or its parameters, got {type(task).__name__}"
        )
    return task
