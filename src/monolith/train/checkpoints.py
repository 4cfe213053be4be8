"""Save a trainer at a pace and at the end of a run, and restore it."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from monolith.checkpoint import Checkpoint, Contents, WriteOptions, find, save
from monolith.checkpoint.dense_tensors import describe, module_tensors
from monolith.checkpoint.retention import Retention
from monolith.checkpoint.state import record_save_time
from monolith.checkpoint.state_tree import Stateful
from monolith.errors import NotFoundError, OpError
from monolith.train.driver import Coordinator, Hook, Run, StepContext, StepResults
from monolith.train.rates import rename_tables
from monolith.train.run_metrics import write_save

if TYPE_CHECKING:
    from monolith.train.trainer import Trainer


_log = logging.getLogger(__name__)

_DEFAULTS = WriteOptions()
_LAST_SAVED = "last_saved_step"  # in the metadata of a run


class Pace:
    """Tells whether some steps or seconds have passed since the last `restart`. Not thread-safe.

    Args:
        every_steps: pace in steps.
        every_seconds: pace in seconds; without both a save is never due.
        clock: seconds; only differences count.

    Raises:
        ValueError: both paces are given.

    Example:
        >>> pace = Pace(every_steps=10)
        >>> pace.restart(5)
        >>> pace.is_due(14), pace.is_due(15)
        (False, True)
    """

    def __init__(
        self,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if every_steps is not None and every_seconds is not None:
            raise ValueError(
                "[CheckpointHook] expected one of every_steps and every_seconds, got "
                f"{every_steps} and {every_seconds}; use a second hook for the other pace"
            )
        self._every_steps, self._every_seconds, self._clock = every_steps, every_seconds, clock
        self._step, self._time = 0, clock()

    def restart(self, step: int) -> None:
        """Begin the next interval at this step, now."""
        self._step, self._time = step, self._clock()

    def is_due(self, step: int) -> bool:
        """Whether the interval is over; never at the step at which it began."""
        if step == self._step:
            return False
        if self._every_seconds is not None:
            return self._clock() - self._time >= self._every_seconds
        return self._every_steps is not None and step >= self._step + self._every_steps


class CheckpointHook(Hook):
    """Saves the trainer whose `fit` runs the hook: at a pace, and at the end of the run.

    It is called after all other hooks, so a checkpoint has what they did in the step. A save that
    fails with an `OpError` is tried once more.

    Args:
        directory: folder for the checkpoints; made if missing. No other run may save there
            meanwhile.
        every_steps: pace in steps.
        every_seconds: pace in seconds; without both only the end is saved.
        keep: number of checkpoints that are kept; 0 keeps all.
        ignore_save_errors: whether the run goes on after a save that failed, with a log.
        is_dense_only: whether tables are left out. Then nothing is saved at the end of the run, nor
            after a step after which another hook has saved the whole trainer.
        clock: seconds since 1970.

    Attributes:
        directory: folder for the checkpoints, as a str; `fit` keeps other runs out of it.
        is_dense_only: see above.

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
        is_dense_only: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = os.fspath(directory)
        self.is_dense_only = is_dense_only
        self._pace = Pace(every_steps, every_seconds, clock)
        self._keep, self._ignore_save_errors, self._clock = keep, ignore_save_errors, clock
        self._saved_step: int | None = None

    def attach(self, trainer: "Trainer") -> None:
        """Save this trainer from now on; `fit` calls it.

        Raises:
            FailedPreconditionError: an update began and did not end.
            TypeError: a state or a tensor cannot be saved, for example one of complex numbers.
        """
        trainer.state.check_whole("[CheckpointHook]")
        self._trainer, self._saved_step = trainer, None
        self._retention = Retention.of_directory(self.directory, self._keep, self._clock)
        # What cannot be saved fails now, not after hours.
        replace(_contents(trainer), tables=()).cut().close()

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Begin the first interval; the state at the beginning is not saved.

        A recovery goes on with the interval, unless the recovery goes back before its beginning.
        """
        record_save_time(self.directory, self._clock(), is_new_only=True)
        step = self._trainer.state.step
        if self._saved_step is None or step < self._saved_step:
            self._saved_step = step
            self._pace.restart(step)

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Save if it is time."""
        step = self._trainer.state.step
        if self._pace.is_due(step):
            self._pace.restart(step)
            self._save(step)

    def end(self, run: Run) -> None:
        """Save the steps since the last save."""
        step = self._trainer.state.step
        if step != self._saved_step and not self.is_dense_only:
            self._save(step)

    def _save(self, step: int) -> None:
        metadata = self._trainer.run.metadata
        if self.is_dense_only and metadata.get(_LAST_SAVED) == step:
            return
        self._trainer.finish_updates()
        self._trainer.state.check_whole("[CheckpointHook]")
        try:
            try:
                self._try_to_save()
            except OpError as error:
                _log.warning("saving step %d failed, it is tried again: %s", step, error)
                self._try_to_save()
            record_save_time(self.directory, self._clock())
        except OpError:
            if not self._ignore_save_errors:
                raise
            _log.exception("the checkpoint of step %d is not saved; the run goes on", step)
        else:
            self._saved_step = step
            if not self.is_dense_only:
                metadata[_LAST_SAVED] = step

    def _try_to_save(self) -> None:
        start = time.monotonic()
        contents, options = _contents(self._trainer), WriteOptions(clock=self._clock)
        if self.is_dense_only:
            contents = replace(contents, tables=())
        prefix = save(contents, self.directory, keep=self._retention, options=options)
        if not self.is_dense_only:
            self._trainer.state.note_checkpoint(prefix)
        seconds = time.monotonic() - start
        _log.info("saving %s took %.3f s", prefix, seconds)
        write_save(self._trainer.metrics, prefix, step=self._trainer.state.step, seconds=seconds)


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
    start = time.monotonic()
    trainer.finish_updates()
    trainer.state.check_whole("[Trainer.save]")
    prefix = save(_contents(trainer), directory, name=name, keep=keep, options=options)
    trainer.state.note_checkpoint(prefix)
    seconds = time.monotonic() - start
    write_save(trainer.metrics, prefix, step=trainer.state.step, seconds=seconds)
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
    checkpoint.restore(tables=tables, dense=_model_tensors(trainer), states=_states(trainer, names))
    saved_rates = rename_tables(trainer.state.saved_rates, names)
    trainer.rates.take_over(saved_rates, trainer.state.step)
    return checkpoint


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


def _contents(trainer: "Trainer") -> Contents:
    """Collect the trainer anew for each save, because a model may have replaced its tensors."""
    dense, states = _model_tensors(trainer), _states(trainer)
    tensors = [(str(tensor.device), name, tensor) for name, tensor in dense.items()]
    return Contents(
        tables=list(trainer.features.tables.values()),
        dense=dense,
        states=states,
        meta=describe([*tensors, *(("cpu", name, state) for name, state in states.items())]),
        step=trainer.state.step,
        with_expired=True,  # a step may update these rows before they are evicted
    )


def _model_tensors(trainer: "Trainer") -> dict[str, Any]:
    return module_tensors("[CheckpointHook]", "model.", trainer.model)


def _states(trainer: "Trainer", names: Mapping[str, str] | None = None) -> dict[str, Stateful]:
    optimizer = _OptimizerState(trainer, names or {})
    states: dict[str, Stateful] = {"optimizer": optimizer, "run": trainer.state}
    return states if trainer.scheduler is None else {**states, "scheduler": trainer.scheduler}
