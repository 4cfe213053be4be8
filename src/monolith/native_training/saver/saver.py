"""The saver: checkpoints one after another, which ones are kept, and partial recovery."""

import logging
import os
import posixpath
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from monolith.checkpoint import (
    WriteOptions,
    checkpoint_exists,
    open_checkpoint,
    read_checkpoint_state,
    write,
)
from monolith.checkpoint.retention import Retention
from monolith.checkpoint.state import STATE_FILE, exempt_names
from monolith.checkpoint.storage import has_folder, path_of
from monolith.native_training.saver.custom_restore import CUSTOM_RESTORE_OP, restore_custom
from monolith.native_training.saver.ps_monitor import PsMonitor
from monolith.native_training.saver.saveables import VarList, collect_items
from monolith.native_training.saver.saver_builder import SaverBuilder
from monolith.table.base import BaseTable
from monolith.table.snapshot import Snapshot
from monolith.train.driver import Run

_log = logging.getLogger(__name__)


class PartialRecoverySaver:
    """Saves and restores what it is given. One thread at a time.

    Args:
        var_list: modules, tensors by name (also a mapping of other names), servers and saveables;
            None: what the collection "variables" of the run holds.
        reshape: whether a restore takes values of another shape and the same size.
        sharded: whether each device gets files of its own.
        max_to_keep: number of checkpoints that are kept; None or 0 keeps all.
        keep_checkpoint_every_n_hours: one more is kept for each such time.
        name: for the log.
        restore_sequentially: whether a restore reads with one thread.
        defer_build: whether `build` is called later.
        allow_empty: whether there may be nothing to save; `save` returns None then.
        pad_step_number: whether steps in names have 8 digits.
        save_relative_paths: whether the state file has paths relative to the directory.
        filename: what `save` writes to if it is given no path.
        ps_monitor: a restore leaves out the servers that it knows as initialised.
        exempt_checkpoint_paths: checkpoints that are never deleted and do not count.
        skip_save: whether `save` writes nothing and returns None.
        model_dir: the exempt checkpoints are those of its `monolith_checkpoint`, read at each save;
            also the place of `clear_nn`.
        with_expired: whether rows that have expired, and are not evicted, are saved too.
        clock: seconds since 1970.

    Raises:
        TypeError: `var_list` holds something else.
        ValueError: there is nothing to save, or two things have one name.

    Example:
        >>> import tempfile, torch
        >>> model, run = torch.nn.Linear(2, 1), Run(global_step=3)
        >>> saver = PartialRecoverySaver(model)
        >>> with tempfile.TemporaryDirectory() as path:
        ...     saved = saver.save(run, f"{path}/model.ckpt", global_step=3)
        ...     saver.restore(run, saved)
        ...     saved.removeprefix(path)
        '/model.ckpt-3'
    """

    def __init__(
        self,
        var_list: VarList | None = None,
        *,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str = "saver",
        restore_sequentially: bool = False,
        defer_build: bool = False,
        allow_empty: bool = False,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
        ps_monitor: PsMonitor | None = None,
        exempt_checkpoint_paths: Iterable[str] = (),
        skip_save: bool = False,
        model_dir: "str | os.PathLike[str] | None" = None,
        with_expired: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if defer_build and var_list is not None:
            raise ValueError(
                "If `var_list` is provided then build cannot be deferred. Either set "
                "defer_build=False or var_list=None."
            )
        self.name, self._clock = name, clock
        self._builder: SaverBuilder | None = None
        self._reshape, self._sharded, self._allow_empty = reshape, sharded, allow_empty
        self._pad_step_number, self._save_relative_paths = pad_step_number, save_relative_paths
        self._num_threads = 1 if restore_sequentially else None
        self._filename, self._skip_save = filename or "model", skip_save
        self._with_expired = with_expired
        self.ps_monitor = ps_monitor
        self._exempt = {posixpath.basename(path) for path in exempt_checkpoint_paths}
        self._model_dir = None if model_dir is None else os.fspath(model_dir)
        self._retention = Retention(
            max_to_keep,
            self._read_exempt,
            every_n_hours=keep_checkpoint_every_n_hours,
            clock=clock,
        )
        if not defer_build:
            self.build(var_list)

    def build(self, var_list: VarList | None = None) -> None:
        """Take note of what is saved.

        Raises:
            ValueError: there is nothing, or two things have one name.
        """
        items = collect_items("[PartialRecoverySaver]", var_list)
        if not items and not self._allow_empty:
            raise ValueError("No variables to save")
        self._builder = SaverBuilder(items, sharded=self._sharded, reshape=self._reshape)

    @property
    def builder(self) -> SaverBuilder:
        """What is saved, by device."""
        if self._builder is None:
            raise RuntimeError("`build()` should be called before save if defer_build==True")
        return self._builder

    @property
    def exempt_checkpoint_paths(self) -> set[str]:
        """Names of the checkpoints that are never deleted."""
        return self._read_exempt() or set()

    def _read_exempt(self) -> set[str] | None:
        """The names; None where their file is there, but cannot be read."""
        if self._model_dir is None:
            return set(self._exempt)
        return exempt_names(self._model_dir)

    @property
    def last_checkpoints(self) -> list[str]:
        """Prefixes of the checkpoints that are kept, oldest first."""
        return [prefix for prefix, _ in self._retention.kept]

    def recover_last_checkpoints(self, checkpoint_paths: Iterable[str]) -> None:
        """Go on with checkpoints of an earlier saver; missing ones are left out."""
        self._retention.recover(checkpoint_paths)

    def set_last_checkpoints_with_time(
        self, last_checkpoints_with_time: list[tuple[str, float]]
    ) -> None:
        """Go on with these prefixes and times."""
        assert isinstance(last_checkpoints_with_time, list)
        self._retention.set_kept(last_checkpoints_with_time)

    def save(
        self,
        run: Run,
        save_path: "str | os.PathLike[str] | None" = None,
        global_step: Any = None,
        latest_filename: str | None = None,
        *,
        write_meta_graph: bool = True,
        write_state: bool = True,
        tables: "Iterable[BaseTable | Snapshot]" = (),
        trainer: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Save a checkpoint, update the state file and delete an old checkpoint. Between two steps.

        Args:
            run: the run.
            save_path: prefix without the step; `filename` in the model directory if None.
            global_step: number or scalar tensor, appended to the path.
            latest_filename: name of the state file; "checkpoint" if None.
            write_meta_graph: whether `<prefix>.meta.json` describes what is saved.
            write_state: whether the state file is updated, and old checkpoints go.
            tables: tables, or open cuts of them, that the checkpoint holds too.
            trainer: more for `<prefix>.trainer.json`.

        Returns:
            The prefix; None if nothing is written.

        Raises:
            TypeError: `run` is none.
            ValueError: a name or path that cannot be.
            OpError: it cannot be written.
        """
        builder = self.builder
        if not isinstance(run, Run):
            raise TypeError(f"[PartialRecoverySaver.save] expected a Run, got {run!r}")
        default = path_of(self._model_dir or ".", self._filename)
        path = default if save_path is None else os.fspath(save_path)
        filename = latest_filename or STATE_FILE
        prefix = self._prefix(path, global_step, filename)
        if self._skip_save or (self._allow_empty and not builder.items_per_device):
            return None
        directory = posixpath.dirname(prefix) or "."
        if not has_folder(directory):
            raise ValueError(f"Parent directory of {path} doesn't exist, can't save.")
        contents = builder.gather()
        contents = replace(
            contents,
            tables=list(tables),
            trainer={**(contents.trainer or {}), **(trainer or {})} or None,
            meta=builder.description() if write_meta_graph else None,
            step=None if global_step is None else int(global_step),
            with_expired=self._with_expired,
        )
        write(contents, prefix, WriteOptions(clock=self._clock))
        if write_state:
            self._RecordLastCheckpoint(prefix, filename)
            self._MaybeDeleteOldCheckpoints()
        return prefix

    def _RecordLastCheckpoint(self, prefix: str, filename: str = STATE_FILE) -> None:  # noqa: N802
        """Make a checkpoint the current one of its state file, and drop the oldest one too many."""
        self._retention.record(prefix, filename, relative=self._save_relative_paths)

    def _MaybeDeleteOldCheckpoints(self) -> None:  # noqa: N802 - names of the reference
        """Delete the files of the checkpoints that were dropped."""
        self._retention.remove_dropped()

    def _prefix(self, path: str, global_step: Any, filename: str) -> str:
        if posixpath.basename(filename) != filename:
            raise ValueError("'latest_filename' must not contain path components")
        if global_step is not None:
            step = int(global_step)
            return f"{path}-{step:08d}" if self._pad_step_number else f"{path}-{step}"
        if posixpath.basename(path) == filename:
            raise ValueError(
                f"'latest_filename' collides with 'save_path': '{filename}' and '{path}'"
            )
        return path

    def restore(self, run: Run | None, save_path: str | None) -> None:
        """Restore a checkpoint, or do what the run's `CustomRestore` says in its place, once.

        A run that exports always restores the checkpoint, and keeps its `CustomRestore`. One that
        counts its steps goes on with the step of the checkpoint.

        Raises:
            ValueError: there is no such checkpoint.
            NotFoundError: something that is restored is not in the checkpoint.
            InvalidArgumentError: a shape or dtype differs.
        """
        if run is not None and save_path is not None and self._restore_custom(run, save_path):
            return
        self._origin_restore(run, save_path)

    def _restore_custom(self, run: Run, save_path: str) -> bool:
        """Whether the run's `CustomRestore` was done."""
        if run.is_exporting:
            return False
        custom, path = run.take(CUSTOM_RESTORE_OP), os.fspath(save_path)
        directory = posixpath.dirname(path) or "."
        has_all = custom and self.builder.items_per_device
        if not has_all or read_checkpoint_state(directory) is None:
            return False
        return restore_custom(custom[-1], open_checkpoint(path), self._model_dir or directory)

    def _origin_restore(self, run: Run | None, save_path: str | None) -> None:
        """Restore every device, but for servers that are initialised, and the step of the run.

        Where servers are left out, they may be ahead of the checkpoint: the step never goes back.
        """
        if save_path is None:
            raise ValueError("Can't load save_path when it is None.")
        path = os.fspath(save_path)
        if not checkpoint_exists(path):
            raise ValueError(f"The passed save_path is not a valid checkpoint: {path}")
        monitor = self.ps_monitor

        def is_wanted(device: str) -> bool:
            return monitor is None or monitor.is_ps_uninitialized(run, device)

        checkpoint = open_checkpoint(path)
        actions = self.builder.restore_ops_per_device(
            checkpoint, is_wanted, num_threads=self._num_threads
        )
        for device, action in actions.items():
            _log.info("%s: restoring %s from %s", self.name, device, path)
            action()
        if run is not None and run.global_step is not None and checkpoint.step is not None:
            is_whole = len(actions) == len(self.builder.items_per_device)
            run.global_step = max(checkpoint.step, 0 if is_whole else run.global_step)

    def setup_ps_initialized_state(self, run: Run | None) -> None:
        """Mark the servers of the monitor as initialised, if there is one."""
        if self.ps_monitor is not None:
            self.ps_monitor.setup_ps_initialized_state(run)
