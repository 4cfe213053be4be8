"""Save and restore a trainer: its tables, model, optimizer and run."""

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from monolith.checkpoint import Checkpoint, Contents, WriteOptions, find, save
from monolith.checkpoint.dense_tensors import describe, module_tensors
from monolith.checkpoint.state_tree import Stateful
from monolith.cluster.job.job_client import JOB
from monolith.cluster.job.job_values import SavedJob
from monolith.cluster.job.served_dense import DENSE_VERSIONS
from monolith.cluster.remote_servers import CLIENTS, RemoteServers
from monolith.errors import NotFoundError
from monolith.table.disk.workers import Progress
from monolith.train.rates import rename_tables
from monolith.train.roles.job_source import position_of_job
from monolith.train.run_metrics import write_save

if TYPE_CHECKING:
    from monolith.train.trainer import Trainer


_DEFAULTS = WriteOptions()


def save_trainer(
    trainer: "Trainer",
    directory: "str | os.PathLike[str]",
    keep: int,
    *,
    name: str | None = None,
    options: WriteOptions = _DEFAULTS,
) -> str:
    """Save a trainer between two steps; arguments are those of `checkpoint.save`.

    Returns:
        The prefix of the checkpoint.

    Raises:
        FailedPreconditionError: an update began and did not end.
        OpError: the directory cannot be written; older checkpoints are as they were.
    """
    start, num_bytes, callback = time.monotonic(), 0, options.progress

    def note(progress: Progress) -> None:
        nonlocal num_bytes
        num_bytes = progress.num_bytes
        if callback is not None:
            callback(progress)

    trainer.finish_updates()
    trainer.state.check_whole("[Trainer.save]")
    options = replace(options, progress=note)
    with contextlib.ExitStack() as stack:
        with trainer.quiet():
            snapshot = stack.enter_context(contents_of(trainer).cut(with_copies=True))
        prefix = save(snapshot, directory, name=name, keep=keep, options=options)
    trainer.state.note_checkpoint(prefix)
    seconds = time.monotonic() - start
    write_save(
        trainer.metrics,
        prefix,
        step=trainer.state.step,
        seconds=seconds,
        pause_seconds=seconds,
        num_bytes=num_bytes,
    )
    return prefix


def restore_trainer(
    trainer: "Trainer", path: "str | os.PathLike[str]", *, fallback: bool
) -> Checkpoint:
    """Give a trainer the state of a checkpoint; dense values are checked before a table changes.

    Args:
        trainer: its `fit` does not run.
        path: a directory, or the prefix of a checkpoint.
        fallback: see `find`.

    Raises:
        NotFoundError: there is no checkpoint, or it lacks a part of the trainer.
        InvalidArgumentError: the model or a table has changed.
        DataLossError: a file is damaged.
    """
    checkpoint = find(path, fallback=fallback)
    if checkpoint is None:
        raise NotFoundError(
            f"[Trainer.restore] expected a checkpoint, got none at {os.fspath(path)!r}"
        )
    tables = list(trainer.features.tables.values())
    names = checkpoint.older_names(tables)
    own = tables if trainer.sync is None or trainer.sync.is_chief else []  # rank 0 asks all ranks
    checkpoint.restore(tables=own, dense=_model_tensors(trainer), states=_states(trainer, names))
    saved_rates = rename_tables(trainer.state.saved_rates, names)
    trainer.rates.take_over(saved_rates, trainer.state.step)
    _send_restored(trainer, checkpoint)
    if trainer.job is None and trainer.state.position is None:
        _take_over_shares(trainer, checkpoint)
    if trainer.sync is not None:
        trainer.sync.after_restore()
    return checkpoint


def _send_restored(trainer: "Trainer", checkpoint: Checkpoint) -> None:
    """Give the servers of a job the dense parameters and the job's state of a checkpoint."""
    if trainer.job is None or trainer.served is None:
        return
    trainer.served.send_all()
    saved = (checkpoint.read_trainer() or {}).get(JOB)
    if saved is not None:
        trainer.job.load(saved)
    trainer.job.set_steps(trainer.state.step)


def _take_over_shares(trainer: "Trainer", checkpoint: Checkpoint) -> None:
    """Go on with what the workers of a job have left of its data."""
    states = (checkpoint.read_trainer() or {}).get(JOB)
    if states is None or states[0]["state"] is None:
        return
    saved = SavedJob.of(states[0]["state"])
    num_ranks = 1 if trainer.sync is None else trainer.sync.group.size
    trainer.state.position = position_of_job(saved, num_ranks)
    trainer.state.num_before = saved.num_samples


class _OptimizerState:
    """Saves the optimizer of a trainer; a restore keeps the state objects that servers hold.

    Args:
        trainer: Trainer of the optimizer.
        names: Saved name -> name of a table, for tables with another name since the save.
    """

    def __init__(self, trainer: "Trainer", names: Mapping[str, str]) -> None:
        self._trainer, self._names = trainer, names

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._trainer.optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        optimizer, names = self._trainer.optimizer, self._names
        groups = [
            {**group, "table": names.get(group["table"], group["table"])}
            if "table" in group
            else group
            for group in state["param_groups"]
        ]
        optimizer.load_state_dict({**state, "param_groups": groups})
        for parameter, hosted in self._trainer.hosted:
            hosted.clear()
            hosted.update(optimizer.state.get(parameter, {}))
            optimizer.state[parameter] = hosted


def contents_of(trainer: "Trainer") -> Contents:
    """Collect the trainer anew for each save, because a model may have replaced its tensors."""
    job, served = trainer.job, trainer.served
    dense, states = _model_tensors(trainer), _states(trainer)
    tensors = [(str(tensor.device), name, tensor) for name, tensor in dense.items()]
    servers = trainer.servers if trainer.sync is None else None
    document = {CLIENTS: servers.clients_state()} if isinstance(servers, RemoteServers) else None
    if document is not None and job is not None and served is not None:
        document |= {JOB: job.export(), DENSE_VERSIONS: served.versions}
    return Contents(
        tables=list(trainer.features.tables.values()),
        dense=dense,
        states=states,
        meta=describe([*tensors, *(("cpu", name, state) for name, state in states.items())]),
        trainer=document,
        step=trainer.state.step,
        with_expired=True,  # a step may update these rows before they are evicted
    )


def _model_tensors(trainer: "Trainer") -> dict[str, Any]:
    return module_tensors("[CheckpointHook]", "model.", trainer.model)


def _states(trainer: "Trainer", names: Mapping[str, str] | None = None) -> dict[str, Stateful]:
    optimizer = _OptimizerState(trainer, names or {})
    states: dict[str, Stateful] = {"optimizer": optimizer, "run": trainer.state}
    return states if trainer.scheduler is None else {**states, "scheduler": trainer.scheduler}
