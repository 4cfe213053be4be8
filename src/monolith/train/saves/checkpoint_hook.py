"""Save a trainer at a pace and at the end of a run: `CheckpointHook`, and `FitSaves` for all hooks.

A due save takes a cut between two steps, and a thread writes the cut while training goes on.
"""

import contextlib
import functools
import logging
import os
import posixpath
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.checkpoint import Chain, Checkpoint, RestoreMark, Saved, WriteOptions
from monolith.checkpoint.cut import CheckpointSnapshot
from monolith.checkpoint.state import record_save_time
from monolith.errors import CancelledError, OpError
from monolith.train.checkpoints import contents_of
from monolith.train.driver import Coordinator, Hook, Run, StepContext, StepResults
from monolith.train.run_metrics import SaveMetrics
from monolith.train.saves.save_thread import PendingSave, SaveThread, Writing
from monolith.train.settings import (
    FULL_EVERY,
    SAVE_RATE,
    SKIP,
    TrainSettings,
    check_save_options,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from monolith.train.trainer import Trainer


_log = logging.getLogger(__name__)


class Pace:
    """Tells whether some steps or seconds have passed since the last `restart`. Not thread-safe.

    Args:
        every_steps: pace in steps.
        every_seconds: pace in seconds; with both, whichever comes first, and with neither, never.
        clock: seconds; only differences count.

    Attributes:
        step: step of the last `restart`.

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
        self._every_steps, self._every_seconds, self._clock = every_steps, every_seconds, clock
        self.step, self._time = 0, clock()

    def restart(self, step: int) -> None:
        """Begin the next interval at this step, now."""
        self.step, self._time = step, self._clock()

    def is_due(self, step: int) -> bool:
        """Whether the interval is over; never at the step at which it began."""
        if step == self.step:
            return False
        if self._every_steps is not None and step >= self.step + self._every_steps:
            return True
        seconds = self._every_seconds
        return seconds is not None and self._clock() - self._time >= seconds


class _Written(NamedTuple):
    """A checkpoint, and what its writing took."""

    saved: Saved
    seconds: float


class _Running(NamedTuple):
    """A save on the thread. It does not hold the snapshot, which the thread closes and frees."""

    step: int
    num_samples: int
    pause_seconds: float
    save: PendingSave[_Written]


class CheckpointHook(Hook):
    """Saves the trainer whose `fit` runs the hook: at a pace, and at the end of the run.

    It is called after all other hooks, so a checkpoint has what they did in the step. The hooks of
    a run share one thread, which writes one checkpoint at a time while training goes on. A save
    that fails with an `OpError` is tried once more; then the run goes on, and the next due save
    tries again. The save at the end of a run is waited for, and its error ends the run.

    Args:
        directory: folder for the checkpoints; made if missing. No other run may save there
            meanwhile.
        every_steps: pace in steps.
        every_seconds: pace in seconds; with both, whichever comes first, and without both only the
            end is saved.
        keep: number of checkpoints that are kept; 0 keeps all. What links need is kept too.
        full_every: number of links, which have what changed since the save before, until a thread
            makes a full checkpoint of the newest link; 1 makes every save a full one.
        ignore_save_errors: whether the run goes on after a save that was waited for has failed,
            with a log.
        is_dense_only: whether tables are left out. Then nothing is saved at the end of the run, nor
            after a step after which another hook has saved the whole trainer.
        background: whether training goes on while a checkpoint is written. False saves on the
            training thread, and an error ends the run.
        rate: bound on the rate of writing in MB/s while training goes on; 0 means no bound.
        busy: what a due save does while the hook's save before it is being written: "skip" leaves
            the due save out, "wait" lets the run wait.
        clock: seconds since 1970.

    Attributes:
        directory: folder for the checkpoints, as a str; `fit` keeps other runs out of it.
        is_dense_only: see above.

    Raises:
        ValueError: `rate` or `busy` is none of these.
    """

    def __init__(
        self,
        directory: "str | os.PathLike[str]",
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int = 5,
        full_every: int = FULL_EVERY,
        ignore_save_errors: bool = False,
        is_dense_only: bool = False,
        background: bool = True,
        rate: float = SAVE_RATE,
        busy: str = SKIP,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_save_options("CheckpointHook", rate=rate, busy=busy)
        self.directory = os.fspath(directory)
        self.is_dense_only = is_dense_only
        self._pace = Pace(every_steps, every_seconds, clock)
        self._keep, self._ignore_save_errors, self._clock = keep, ignore_save_errors, clock
        self._full_every = 1 if is_dense_only else full_every
        self._background, self._rate, self._busy = background, rate, busy
        self._has_seconds = every_seconds is not None
        self._saved_step: int | None = None
        self._skipped_step: int | None = None
        self._running: _Running | None = None
        self._compaction: PendingSave[Saved | None] | None = None

    def attach(self, trainer: "Trainer", saves: "FitSaves") -> None:
        """Save this trainer from now on; `fit` calls it.

        Raises:
            FailedPreconditionError: an update began and did not end.
            TypeError: a state or a tensor cannot be saved, for example one of complex numbers.
        """
        trainer.state.check_whole("[CheckpointHook]")
        self._trainer, self._saves = trainer, saves
        self._saved_step = self._running = self._compaction = None
        self._chain = Chain(
            self.directory, keep=self._keep, full_every=self._full_every, clock=self._clock
        )
        # What cannot be saved fails now, not after hours.
        replace(contents_of(trainer), tables=()).cut().close()

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Begin the first interval; the state at the beginning is not saved.

        A recovery goes on with the interval, unless the recovery goes back before its beginning.
        """
        record_save_time(self.directory, self._clock(), is_new_only=True)
        step = self._trainer.state.step
        if self._saved_step is None or step < self._pace.step:
            self._pace.restart(step)
        if self._saved_step is None:
            self._saved_step = self._first_saved_step(step)
        self._saved_step = min(self._saved_step, step)

    def _first_saved_step(self, step: int) -> int:
        """Return the step of the state that needs no save: that at the beginning.

        A chief of a job that comes back may find steps that no checkpoint has.
        """
        trainer = self._trainer
        if trainer.job is None:
            return step
        prefix = trainer.state.checkpoint
        saved = None if prefix is None else Checkpoint(prefix).step
        return -1 if saved is None else saved

    def follow(self, mark: RestoreMark) -> bool:
        """Whether this hook continues the checkpoint from which the trainer was restored."""
        if self.is_dense_only or not self._is_here(mark.prefix):
            return False
        self._chain.follow(mark)
        return True

    def detach(self) -> None:
        """Let go of the tables; nothing is being written any more."""
        self._chain.close()

    def idle(self, ctx: StepContext) -> None:
        """Save by time also while a step waits for its samples; ranks save between steps only.

        A save by time that was skipped is made up as soon as the one before is written.
        """
        if self._trainer.sync is not None:
            return
        self._save_if_due(ctx)
        step = self._trainer.state.step
        if self._skipped_step == step and self._running is None:
            self._skipped_step = None
            self._begin(step, is_ending=False)

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Note the save that has ended, and begin the next one if it is time."""
        self._save_if_due(ctx)

    def _save_if_due(self, ctx: StepContext) -> None:
        self.collect()
        if self._chain.is_long and self._compaction is None:
            name = f"the full checkpoint of step {self._saved_step}"
            self._compaction = self._saves.compactions.start(name, self._compact)
        step = self._trainer.state.step
        if not self._pace.is_due(step) or not self._trainer.may_save:
            return
        self._pace.restart(step)
        if self.is_dense_only and self._saves.has_whole(step):
            return
        if self._must_skip(step):
            self._skipped_step = step if self._has_seconds else None
            return
        if self._background:
            self._begin(step, is_ending=ctx.coordinator.is_end_requested)
        else:
            self._save_now(step, ignores_errors=self._ignore_save_errors)

    def is_due(self, step: int) -> bool:
        """Whether this hook saves after a step, if it comes now."""
        return self._pace.is_due(step)

    def end(self, run: Run) -> None:
        """Finish the saves that are being written, and save the steps since the last one."""
        self._saves.finish()
        step = self._trainer.state.step
        if step != self._saved_step and not self.is_dense_only:
            self._save_now(step, ignores_errors=self._ignore_save_errors)

    def save_now(self) -> str:
        """Save before training goes on, unless the step is saved already; return the prefix.

        Raises:
            OpError: The checkpoint cannot be written, whatever `ignore_save_errors` says.
        """
        self._saves.finish()
        trainer = self._trainer
        if trainer.job is not None:  # other workers may have gone on
            trainer.run.global_step = max(trainer.state.step, trainer.job.read_steps())
        step, prefix = trainer.state.step, trainer.state.checkpoint
        if step != self._saved_step or prefix is None or not self._is_here(prefix):
            self._save_now(step, ignores_errors=False)
            self._pace.restart(trainer.state.step)
            prefix = trainer.state.checkpoint
        assert prefix is not None
        return prefix

    def _is_here(self, prefix: str) -> bool:
        return posixpath.dirname(prefix).rstrip("/") == self.directory.rstrip("/")

    def has_save_of(self, step: int) -> bool:
        """Whether this hook has saved a step or is writing its checkpoint."""
        return step in (self._saved_step, self._running and self._running.step)

    def collect(self) -> None:
        """Note the save and the compaction that have ended.

        Raises:
            Exception: the error of the save or compaction, unless it is an `OpError`.
        """
        self._collect_compaction()
        if self._running is None or not self._running.save.is_done:
            return
        (step, num_samples, pause_seconds, save), self._running = self._running, None
        error = save.error()
        if error is None:
            self._note(step, num_samples, pause_seconds, save.result())
        elif isinstance(error, OpError):
            self._note_failure(step, error)
        else:
            raise error

    def _collect_compaction(self) -> None:
        if self._compaction is None or not self._compaction.is_done:
            return
        compaction, self._compaction = self._compaction, None
        try:
            compacted = compaction.result()
        except OpError as error:
            if not isinstance(error, CancelledError):
                _log.warning("no full checkpoint is made of the links: %s", str(error))
                self._saves.metrics.compaction_failed(error)
        else:
            if compacted is not None:
                _log.info("%s is made of its links", compacted.prefix)
                self._saves.metrics.compacted(compacted)

    def _compact(self, writing: Writing) -> Saved | None:
        options = self._options(is_hurried=False)
        options = replace(options, progress=writing.note, control=writing.control)
        return self._chain.compact(options)

    def _must_skip(self, step: int) -> bool:
        """Skip a due save, or wait for the save before, if that one is still being written."""
        if self._running is None:
            return False
        if self._busy == SKIP:
            self._saves.metrics.skipped(step, self._running.step)
            return True
        start = time.perf_counter()
        self._saves.finish()
        self._saves.metrics.waited(time.perf_counter() - start)
        return False

    def _begin(self, step: int, *, is_ending: bool) -> None:
        """Take a cut and let the thread write it, as fast as it can if the run is ending."""
        start = time.perf_counter()
        self._finish_step()
        try:
            snapshot = self._cut(with_copies=True)
        except OpError as error:
            self._note_failure(step, error)
            return
        step = self._trainer.state.step  # other workers of a job have gone on before the cut
        save = self._start(step, snapshot, self._options(is_hurried=is_ending))
        num_samples, pause_seconds = self._trainer.state.num_samples, time.perf_counter() - start
        self._running = _Running(step, num_samples, pause_seconds, save)

    def _save_now(self, step: int, *, ignores_errors: bool) -> None:
        """Save before training goes on; an error is raised unless errors are ignored."""
        start = time.perf_counter()
        self._finish_step()
        self._saves.finish()
        try:
            snapshot, options = self._cut(with_copies=False), self._options(is_hurried=True)
            step = self._trainer.state.step
            if self._background:
                save = self._start(step, snapshot, options)
                if (error := save.error()) is not None:
                    raise error
                written = save.result()
            else:
                written = self._write_twice(snapshot, options, Writing(f"step {step}"))
        except OpError as error:
            if not ignores_errors:
                self._saves.metrics.failed(step, error)
                raise
            self._note_failure(step, error)
        else:
            pause_seconds = time.perf_counter() - start
            self._note(step, self._trainer.state.num_samples, pause_seconds, written)

    def _finish_step(self) -> None:
        self._trainer.finish_updates()
        self._trainer.state.check_whole("[CheckpointHook]")

    def _options(self, *, is_hurried: bool) -> WriteOptions:
        is_limited = self._rate > 0 and not is_hurried
        return WriteOptions(
            num_threads=torch.get_num_threads() if is_hurried else 1,
            max_bytes_per_second=self._rate * 1e6 if is_limited else None,
            clock=self._clock,
        )

    def _cut(self, *, with_copies: bool) -> CheckpointSnapshot:
        with contextlib.ExitStack() as stack:
            with self._trainer.quiet():
                contents = contents_of(self._trainer)
                if self.is_dense_only:
                    contents = replace(contents, tables=())
                with_copies = with_copies or self._trainer.job is not None
                snapshot = stack.enter_context(self._chain.cut(contents, with_copies=with_copies))
            stack.pop_all()  # the moment was quiet to its end
        return snapshot

    def _start(
        self, step: int, snapshot: CheckpointSnapshot, options: WriteOptions
    ) -> PendingSave[_Written]:
        write = functools.partial(self._write_twice, snapshot, options)
        try:
            return self._saves.thread.start(f"step {step}", write)
        except BaseException:  # for example an interrupt, whose traceback would keep the cut open
            snapshot.close()
            raise

    def _write_twice(
        self, snapshot: CheckpointSnapshot, options: WriteOptions, writing: Writing
    ) -> _Written:
        """Write a cut, once more after an `OpError`, and close the cut; on the thread of saves."""
        start = time.monotonic()
        options = replace(options, progress=writing.note, control=writing.control)
        with snapshot:
            try:
                saved = self._write(snapshot, replace(options, keeps_cut=True))
            except CancelledError:
                raise
            except OpError as error:
                # Text, because the record of a log would keep the cut with the error.
                _log.warning("saving %s failed, it is tried again: %s", writing.name, str(error))
                writing.is_failing = True
                saved = self._write(snapshot, options)
        return _Written(saved, time.monotonic() - start)

    def _write(self, snapshot: CheckpointSnapshot, options: WriteOptions) -> Saved:
        saved = self._chain.save(snapshot, options)
        record_save_time(self.directory, self._clock())
        return saved

    def _note(self, step: int, num_samples: int, pause_seconds: float, written: _Written) -> None:
        self._saved_step = step
        if not self.is_dense_only:
            self._trainer.state.note_save(written.saved.prefix, num_samples)
        _log.info("saving %s took %.3f s", written.saved.prefix, written.seconds)
        self._saves.metrics.saved(
            written.saved, step=step, seconds=written.seconds, pause_seconds=pause_seconds
        )

    def _note_failure(self, step: int, error: OpError) -> None:
        if isinstance(error, CancelledError):
            _log.info("the save of step %d was abandoned", step)
        else:
            text = "the checkpoint of step %d is not saved; the run goes on: %s"
            _log.warning(text, step, str(error))
        self._saves.metrics.failed(step, error)


class FitSaves:
    """The checkpoint hooks of one `fit`, the thread on which they save, and their figures.

    The end of the block finishes the saves that are being written, without their rate limits;
    Ctrl-C abandons them.

    Args:
        hooks: Checkpoint hooks of the `fit`.
        metrics: Figures of the saves.

    Attributes:
        hooks: The hooks, those without tables last: a save of everything makes theirs superfluous.
        thread: Thread that writes the saves.
        compactions: Thread that makes full checkpoints of links; a run that fails abandons them.
        metrics: Figures of the saves.
    """

    def __init__(self, hooks: Sequence[CheckpointHook], metrics: SaveMetrics) -> None:
        self.hooks = sorted(hooks, key=lambda hook: hook.is_dense_only)
        self.thread, self.compactions, self.metrics = SaveThread(), SaveThread(), metrics
        self._attached: list[CheckpointHook] = []

    def attach(self, trainer: "Trainer") -> None:
        """Let all hooks save a trainer from now on, until the end of the block."""
        for hook in self.hooks:
            hook.attach(trainer, self)
            self._attached.append(hook)

    def follow(self, mark: RestoreMark | None) -> None:
        """Let the hook that saves where a checkpoint was restored from continue the checkpoint."""
        if mark is not None and not any(hook.follow(mark) for hook in self.hooks):
            mark.drop()

    def is_due(self, step: int) -> bool:
        """Whether a hook saves after a step, if it comes now."""
        return any(hook.is_due(step) for hook in self.hooks)

    def has_whole(self, step: int) -> bool:
        """Whether a hook has saved a step with its tables, or is writing such a checkpoint."""
        return any(hook.has_save_of(step) for hook in self.hooks if not hook.is_dense_only)

    def finish(self, *, drops_failing: bool = False) -> None:
        """Wait for all saves, without their rate limits, and note them; see `SaveThread.finish`."""
        self.thread.finish(drops_failing=drops_failing)
        self._collect()

    def _collect(self) -> None:
        for hook in self.hooks:
            hook.collect()

    def __enter__(self) -> "Self":
        if self.hooks:
            self.metrics.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self.compactions.abandon()
            if isinstance(error, KeyboardInterrupt):
                self.thread.abandon()
            else:
                for thread in (self.thread, self.compactions):
                    thread.finish()
                    thread.close()
        except KeyboardInterrupt:
            self.thread.abandon()
            self.compactions.abandon()
            raise
        finally:
            for hook in self._attached:
                hook.detach()
        try:
            self._collect()
        except Exception:
            if error is None:
                raise
            _log.exception("a save has failed while a run that failed ends")


def checkpoint_hooks(settings: TrainSettings) -> list[CheckpointHook]:
    """Return the hook that saves as the settings say; none without a folder."""
    if settings.checkpoint_dir is None:
        return []
    return [
        CheckpointHook(
            settings.checkpoint_dir,
            every_steps=settings.steps_between_saves or None,
            every_seconds=settings.save_seconds,
            keep=settings.keep,
            full_every=settings.full_every,
            ignore_save_errors=settings.ignore_save_errors,
            background=settings.background_saves,
            rate=settings.save_rate,
            busy=settings.busy_save,
        )
    ]
