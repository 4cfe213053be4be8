"""Checkpoints of a trainer: all of it at one moment between two steps, and back."""

import math
import os
import posixpath
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monolith.checkpoint import Checkpoint, locate_checkpoint, read_checkpoint_state, take_cut
from monolith.checkpoint.state import MONOLITH_STATE_FILE
from monolith.checkpoint.storage import exists, make_folder
from monolith.errors import NotFoundError
from monolith.native_training.saver.hook import NoFirstSaveCheckpointSaverHook
from monolith.native_training.saver.listeners import SaverListener
from monolith.native_training.saver.saver import PartialRecoverySaver
from monolith.table.base import BaseTable
from monolith.train.driver import Run

if TYPE_CHECKING:
    from monolith.train.trainer import Trainer


BASE_NAME = "model.ckpt"
"""Checkpoints of a trainer are `<directory>/model.ckpt-<step>`."""


class CheckpointHook(NoFirstSaveCheckpointSaverHook):
    """Saves the trainer whose `fit` it is a hook of: at a pace, and at the end of the run.

    It comes after all other hooks: a checkpoint has what they did in the step.

    Args:
        directory: where checkpoints go; made if missing. No other run may save there meanwhile.
        every_steps: pace in steps.
        every_seconds: pace in seconds; without both only the end is saved.
        keep: number of checkpoints that are kept; 0 keeps all.
        ignore_save_errors: whether a save that fails leaves the run alone, but for a log.
        clock: seconds since 1970.

    Raises:
        ValueError: both paces are given.
    """

    def __init__(
        self,
        directory: "str | os.PathLike[str]",
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int = 5,
        ignore_save_errors: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        has_pace = every_steps is not None or every_seconds is not None
        super().__init__(
            directory,
            every_seconds if has_pace else math.inf,
            every_steps,
            checkpoint_basename=BASE_NAME,
            save_graph_def=False,
            ignore_save_errors=ignore_save_errors,
            clock=clock,
        )
        self._keep = keep

    @property
    def directory(self) -> str:
        """Where checkpoints go; `fit` keeps other runs out of it."""
        return self._directory

    def attach(self, trainer: "Trainer") -> None:
        """Save this trainer from now on; `fit` calls it.

        Raises:
            TypeError: a state or a tensor cannot be saved, for example one of complex numbers.
        """
        self._saver = _saver(trainer, self._directory, self._keep, self._directory)
        self._listeners = [_Parts(trainer, self._saver, self._directory)]
        contents = self._saver.builder.gather()  # what cannot be saved is told now, not after hours
        take_cut(dense=contents.dense, trainer=contents.states).close()


def save_trainer(trainer: "Trainer", directory: "str | os.PathLike[str]", keep: int) -> str:
    """Save a trainer between two steps.

    Returns:
        The prefix of the checkpoint.

    Raises:
        OpError: it cannot be written; older checkpoints are as they were.
    """
    path = os.fspath(directory)
    has_exempt = exists(posixpath.join(path, MONOLITH_STATE_FILE))
    saver = _saver(trainer, path, keep, path if has_exempt else None)
    parts = _Parts(trainer, saver, path)
    parts.before_save(trainer.run, trainer.state.step)
    prefix = saver.save(
        trainer.run, posixpath.join(path, BASE_NAME), trainer.state.step, tables=parts.tables
    )
    assert prefix is not None
    return prefix


def restore_trainer(
    trainer: "Trainer", path: "str | os.PathLike[str]", *, fallback: bool
) -> Checkpoint:
    """Give a trainer the state of a checkpoint; dense values are checked before a table changes.

    Args:
        trainer: no `fit` of it runs.
        path: a directory, or the prefix of a checkpoint.
        fallback: see `find_checkpoint`.

    Raises:
        NotFoundError: there is no checkpoint, or it lacks a part of the trainer.
        InvalidArgumentError: the model or a table has changed.
        DataLossError: a file is damaged.
    """
    checkpoint = locate_checkpoint(path, fallback=fallback)
    if checkpoint is None:
        raise NotFoundError(
            f"[Trainer.restore] expected a checkpoint, got none at {os.fspath(path)!r}"
        )
    saver = PartialRecoverySaver(_items(trainer))
    actions = saver.builder.restore_ops_per_device(checkpoint)
    checkpoint.restore_tables(list(trainer.features.tables.values()))
    for action in actions.values():
        action()
    trainer.rates.take_over(trainer.state.saved_rates, trainer.state.step)
    return checkpoint


class _Parts(SaverListener):
    """Before a save: no update is under way, and the saver knows the tensors of this moment."""

    def __init__(self, trainer: "Trainer", saver: PartialRecoverySaver, directory: str) -> None:
        self._trainer, self._saver, self._directory = trainer, saver, directory

    @property
    def tables(self) -> Sequence[BaseTable]:
        """Of all features."""
        return list(self._trainer.features.tables.values())

    def before_save(self, run: Run, global_step: int) -> None:
        """Called on the thread of the run, between two steps."""
        make_folder(self._directory)  # it may have vanished
        self._trainer.finish_updates()
        self._saver.build(_items(self._trainer))  # a model may have put others in their place


class _OptimizerState:
    """The state of the optimizer; servers keep the one they are given."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._trainer.optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        optimizer = self._trainer.optimizer
        optimizer.load_state_dict(state)
        for parameter, kept in self._trainer.hosted:
            kept.clear()
            kept.update(optimizer.state.get(parameter, {}))
            optimizer.state[parameter] = kept


def _items(trainer: "Trainer") -> dict[str, Any]:
    items: dict[str, Any] = {
        "model": trainer.model,
        "optimizer": _OptimizerState(trainer),
        "run": trainer.state,
    }
    return items if trainer.scheduler is None else {**items, "scheduler": trainer.scheduler}


def _saver(
    trainer: "Trainer", directory: str, keep: int, model_dir: str | None
) -> PartialRecoverySaver:
    """Goes on with the checkpoints that the directory has."""
    saver = PartialRecoverySaver(
        _items(trainer),
        max_to_keep=keep,
        model_dir=model_dir,
        save_relative_paths=True,
        with_expired=True,  # a step may update them before they are evicted
    )
    state = read_checkpoint_state(directory)
    if state is not None:
        own = [
            path
            for path in state.all_model_checkpoint_paths
            if posixpath.dirname(path) == directory.rstrip("/")
        ]
        saver.recover_last_checkpoints(own)
    return saver
