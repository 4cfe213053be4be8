"""Hooks of a run that save checkpoints and restore the current one."""

import logging
import math
import os
import posixpath
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from monolith.checkpoint.state import HashTableType, record_save_time
from monolith.checkpoint.storage import make_folder
from monolith.environment import metric_prefix
from monolith.errors import DeadlineExceededError, OpError
from monolith.native_training.saver.listeners import RestorerListener, SaverListener
from monolith.native_training.saver.restore_override import get_checkpoint_state
from monolith.native_training.saver.saver import PartialRecoverySaver
from monolith.native_training.saver.timer import SecondOrStepTimer, Window
from monolith.observe.metrics import MetricsSink, NullSink
from monolith.train.debugging_files import write_module_tree
from monolith.train.driver import (
    Coordinator,
    Hook,
    Run,
    StepContext,
    StepResults,
    current_or_default_run,
)
from monolith.util.waiting import DEFAULT_TIMEOUT_SECONDS, check_timeout

_log = logging.getLogger(__name__)

DENSE_ONLY_HOOKS = "dense_only_saver_hooks"
"""Collection of a run with its hooks that save dense parameters only."""
MODEL_DUMP = "model_dump"
"""Metadata of a run: true if it dumps its model."""

_LAST_SAVED = "last_saved_step"  # metadata of a run
_NUM_TRIES = 2


@dataclass
class _Request:
    """A save that another thread asked for."""

    ignore_save_errors: bool
    is_done: threading.Event
    error: BaseException | None = None


class NoFirstSaveCheckpointSaverHook(Hook):
    """Saves a run at a pace, when it is asked to, and at its end.

    Args:
        checkpoint_dir: where checkpoints go; made if missing.
        save_secs: pace in seconds.
        save_steps: pace in steps; one of the two is given.
        saver: what is saved; all variables of the run if None.
        checkpoint_basename: names are `<basename>-<step>`.
        listeners: called around each try to save, in this order.
        save_graph_def: whether `meta_graph_for_debugging.pb` describes the model.
        tide: window outside of which `tide_save_secs` is the pace.
        tide_save_secs: see `tide`.
        ignore_save_errors: whether a save that fails leaves the run alone.
        is_dense_only: whether this hook saves dense parameters between saves of another hook.
        use_native_multi_hash_table: what `monolith_checkpoint` says of the tables.
        no_first_save: whether nothing is saved when the run starts.
        guard_saver_listeners: called around each save; their `after_save` always, in reverse order.
        sink: takes the metrics.
        clock: seconds since 1970.
        trigger_seconds: limit on the wait of another thread for a step boundary.

    Attributes:
        timer: of the pace.

    Raises:
        ValueError: see `SecondOrStepTimer`.
    """

    def __init__(
        self,
        checkpoint_dir: "str | os.PathLike[str]",
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: PartialRecoverySaver | None = None,
        checkpoint_basename: str = "model.ckpt",
        *,
        listeners: Iterable[SaverListener] = (),
        save_graph_def: bool = True,
        tide: Window | None = None,
        tide_save_secs: float | None = None,
        ignore_save_errors: bool = False,
        is_dense_only: bool = False,
        use_native_multi_hash_table: bool = False,
        no_first_save: bool = True,
        guard_saver_listeners: Iterable[SaverListener] = (),
        sink: MetricsSink | None = None,
        clock: Callable[[], float] = time.time,
        trigger_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._directory = os.fspath(checkpoint_dir)
        self._prefix = posixpath.join(self._directory, checkpoint_basename)
        self._saver, self._clock = saver, clock
        self._listeners, self._guards = list(listeners), list(guard_saver_listeners)
        self._save_graph_def, self._no_first_save = save_graph_def, no_first_save
        self._ignore_save_errors, self._is_dense_only = ignore_save_errors, is_dense_only
        self._table_type = (
            HashTableType.MULTI_CUCKOO_HASH_MAP
            if use_native_multi_hash_table
            else HashTableType.CUCKOO_HASH_MAP
        )
        self._sink: MetricsSink = NullSink() if sink is None else sink
        self._trigger_seconds = check_timeout("[NoFirstSaveCheckpointSaverHook]", trigger_seconds)
        self.timer = SecondOrStepTimer(
            save_secs, save_steps, tide=tide, tide_every_secs=tide_save_secs, clock=clock
        )
        self._lock = threading.RLock()  # one save at a time
        self._requests: list[_Request] = []
        self._thread: int | None = None
        self._last_step: int | None = None  # nothing new to save since then

    def begin(self) -> None:
        """Make the directory and tell the listeners.

        Raises:
            RuntimeError: the run does not count its steps.
        """
        run = current_or_default_run()
        if run.global_step is None:
            raise RuntimeError("Global step should be created to use CheckpointSaverHook.")
        make_folder(self._directory)
        if self._saver is None:
            self._saver = PartialRecoverySaver(model_dir=self._directory)
        if self._is_dense_only:
            run.add(DENSE_ONLY_HOOKS, self)
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Mark servers as initialised and save, unless there is no first save."""
        self._thread = threading.get_ident()
        step, saver = _step_of(run), self._checked_saver()
        if self._save_graph_def:
            write_module_tree(self._directory, saver.builder.description())
        saver.setup_ps_initialized_state(run)
        self._create_or_update_monolith_ckpt_state(do_update=False)
        with self._lock:
            if not self._no_first_save:
                self._save(run, step, ignore_save_errors=self._ignore_save_errors)
            self.timer.update_last_triggered_step(step)
            is_recovery = self._no_first_save and run.num_recoveries > 0
            if not is_recovery or self._last_step is None or step < self._last_step:
                self._last_step = step

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Save if it is time, or if another thread asked for it."""
        self.serve_requests(ctx.run)
        step = _step_of(ctx.run)
        with self._lock:
            if self.timer.should_trigger_for_step(step):
                self.timer.update_last_triggered_step(step)
                if self._save(ctx.run, step, ignore_save_errors=self._ignore_save_errors):
                    ctx.request_stop()

    def end(self, run: Run) -> None:
        """Save what is new; always beside a dense-only hook or in a dump of the model."""
        step = _step_of(run)
        is_forced = bool(run.collection(DENSE_ONLY_HOOKS) or run.metadata.get(MODEL_DUMP))
        with self._lock:
            if not self._is_dense_only and (is_forced or step != self._last_step):
                self._save(run, step, ignore_save_errors=self._ignore_save_errors)
        self.serve_requests(run)
        for listener in self._listeners:
            listener.end(run, step)

    def trigger_save(
        self,
        run: Run,
        ignore_save_errors: bool = False,
        *,
        timeout_seconds: float = math.inf,
    ) -> None:
        """Save now, or from another thread at the next step boundary. Safe from any thread.

        Args:
            run: the run.
            ignore_save_errors: whether a save that fails leaves the run alone.
            timeout_seconds: limit on the wait for a step boundary, if less than `trigger_seconds`.

        Raises:
            OpError: the save failed, and errors are not ignored.
            DeadlineExceededError: there was no step boundary in time; nothing is saved then.
        """
        if threading.get_ident() == self._thread:
            self._save_now(run, ignore_save_errors)
            return
        request = _Request(ignore_save_errors, threading.Event())
        with self._lock:
            self._requests.append(request)
        seconds = min(self._trigger_seconds, timeout_seconds)
        if not request.is_done.wait(min(seconds, threading.TIMEOUT_MAX)):
            with self._lock:
                is_waiting = request in self._requests
                self._requests = [each for each in self._requests if each is not request]
            if is_waiting:
                raise DeadlineExceededError(
                    "[trigger_save] expected a step boundary of the run within "
                    f"{seconds:g} s, got none; the run waits or has ended"
                )
            request.is_done.wait()
        if request.error is not None:
            raise request.error

    def serve_requests(self, run: Run) -> None:
        """Do what other threads asked for; a hook that holds the run between steps calls it too."""
        while True:
            with self._lock:
                request = self._requests.pop(0) if self._requests else None
            if request is None:
                return
            try:
                self._save_now(run, request.ignore_save_errors)
            except BaseException as error:
                request.error = error
            finally:
                request.is_done.set()

    def _save_now(self, run: Run, ignore_save_errors: bool) -> None:
        with self._lock:
            self.timer.reset()
            step = _step_of(run)
            self.timer.update_last_triggered_step(step)
            self._save(run, step, ignore_save_errors=ignore_save_errors)

    def _save(self, run: Run, step: int, *, ignore_save_errors: bool) -> bool:
        """Save once, with guards around it; whether a listener wants the run to end."""
        if self._is_dense_only and run.metadata.get(_LAST_SAVED) == step:
            return False
        for guard in self._guards:
            _try(guard.before_save, run, step)
        try:
            return self._try_to_save(run, step)
        except OpError:
            if not ignore_save_errors:
                raise
            _log.exception("the checkpoint of step %d is not saved; the run goes on", step)
            return False
        finally:
            for guard in reversed(self._guards):
                _try(guard.after_save, run, step)

    def _try_to_save(self, run: Run, step: int) -> bool:
        tags = {"mode": "dense_only" if self._is_dense_only else "full"}
        prefix = metric_prefix()
        for num_left in reversed(range(_NUM_TRIES)):
            start = self._clock()
            try:
                is_end = self._save_with_listeners(run, step)
            except OpError as error:
                self._sink.count(f"{prefix}.save_checkpoint_failed", 1, tags)
                if not num_left:
                    raise
                _log.warning("saving step %d failed, it is tried again: %s", step, error)
            else:
                break
        seconds = self._clock() - start
        self._sink.count(f"{prefix}.save_checkpoint", 1, tags)
        self._sink.time(f"{prefix}.save_checkpoint_time", seconds * 1e6, tags)
        _log.info("saving checkpoint took %.3f s, step %d", seconds, step)
        self._create_or_update_monolith_ckpt_state(do_update=True)
        run.metadata[_LAST_SAVED] = self._last_step = step
        return is_end

    def _save_with_listeners(self, run: Run, step: int) -> bool:
        for listener in self._listeners:
            listener.before_save(run, step)
        tables = [table for listener in self._listeners for table in listener.tables]
        self._checked_saver().save(run, self._prefix, step, tables=tables)
        answers = [listener.after_save(run, step) for listener in self._listeners]
        return any(answers)

    def _create_or_update_monolith_ckpt_state(self, do_update: bool) -> None:
        """Write the time and the type of tables to `monolith_checkpoint`.

        Args:
            do_update: whether a file that exists is changed.
        """
        now, is_new_only = self._clock(), not do_update
        record_save_time(self._directory, now, self._table_type, is_new_only=is_new_only)

    def _checked_saver(self) -> PartialRecoverySaver:
        assert self._saver is not None, "begin() makes one"
        return self._saver


class CheckpointRestorerHook(Hook):
    """Restores the current checkpoint of a directory when a run starts. Before saver hooks.

    A recovery of the run keeps the state: only servers that the saver's monitor knows as new are
    restored then.

    Args:
        checkpoint_dir: the directory; without a checkpoint there, nothing happens.
        saver: restores what it saves, and goes on with the checkpoints of the directory.
        listeners: `before_restore` of all of them is called, then `after_restore`.
        settings: see `get_checkpoint_state`.
    """

    def __init__(
        self,
        checkpoint_dir: "str | os.PathLike[str]",
        saver: PartialRecoverySaver | None = None,
        *,
        listeners: Iterable[RestorerListener] = (),
        settings: Any = None,
    ) -> None:
        self._directory, self._saver = os.fspath(checkpoint_dir), saver
        self._listeners, self._settings = list(listeners), settings
        self._is_recovery = False

    def begin(self) -> None:
        """Restore the whole state in the next session."""
        self._is_recovery = False

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Restore the whole state, or after a recovery the servers that are new."""
        is_recovery, self._is_recovery = self._is_recovery, True
        if is_recovery and (self._saver is None or self._saver.ps_monitor is None):
            return
        state = get_checkpoint_state(self._directory, settings=self._settings)
        if state is None:
            return
        prefix = state.model_checkpoint_path
        if self._saver is not None:
            self._saver.restore(run, prefix)
            self._saver.recover_last_checkpoints(state.paths_in(self._directory))
        for listener in self._listeners:
            listener.before_restore(run, prefix)
        for listener in self._listeners:
            listener.after_restore(run, prefix)


def _step_of(run: Run) -> int:
    return 0 if run.global_step is None else int(run.global_step)


def _try(call: Callable[[Run, int], object], run: Run, step: int) -> None:
    try:
        call(run, step)
    except Exception:
        _log.exception("a guard of the save of step %d failed", step)
