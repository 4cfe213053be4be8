"""`Trainer`: fits, evaluates and predicts with a task."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from monolith.checkpoint import Checkpoint, RestoreMark
from monolith.checkpoint.run_lock import only_run
from monolith.cluster import LocalServers, RemoteServers, Servers
from monolith.cluster.job.job_client import JobClient
from monolith.cluster.job.served_dense import ServedDense
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.control import ControlOptions
from monolith.data import Batch
from monolith.errors import FailedPreconditionError, InvalidArgumentError, OpError
from monolith.features import cut_tables
from monolith.nn import Features
from monolith.observe.alerts import alert_rules
from monolith.observe.metrics import MetricsSink, NullSink
from monolith.observe.summaries import SUMMARIES
from monolith.optim import Optimizer
from monolith.table.calls import Clock, wall_clock
from monolith.train.checkpoints import restore_trainer, save_trainer
from monolith.train.controlled.run_control import (
    ControlHook,
    ControlledFit,
    check_control,
    control_hooks,
)
from monolith.train.controlled.tide_hook import tide_hooks
from monolith.train.debugging_files import write_debugging_files
from monolith.train.driver import Hook, Run, drive
from monolith.train.figures import ALERT_FIGURES, alert_hooks, label_of
from monolith.train.hooks import (
    EvalHook,
    EvictHook,
    RunLockHook,
    SweepHook,
    check_hours,
    end_hooks,
    job_hooks,
)
from monolith.train.hosting import engine_maker, host_parameters, table_maker, transfer_to
from monolith.train.inputs import TaskColumns, Trainee
from monolith.train.interrupt import Interrupt
from monolith.train.loop import BatchOutput, SourceBatch, TrainLoop
from monolith.train.online.idle_calls import IdleCalls
from monolith.train.online.online_hook import OnlineHook, check_scores
from monolith.train.ranks.rank_loop import RankLoop, figures_hook, join_ranks, make_loop
from monolith.train.ranks.rank_sync import RankSync, rank_source, reader_of, settings_of_rank
from monolith.train.rates import TaskRates
from monolith.train.read_ahead import AutoPrefetch
from monolith.train.roles.job_source import BeginAt
from monolith.train.roles.served_data import worker_batches
from monolith.train.run_metrics import (
    METRICS,
    FitResult,
    MetricsHook,
    SaveMetrics,
    lenient_sink,
    write_evaluation,
)
from monolith.train.run_state import (
    DenseCopies,
    EvaluationCut,
    RunState,
    StepClock,
    position_of,
    seed_all,
    torch_threads,
)
from monolith.train.saves.checkpoint_hook import CheckpointHook, FitSaves, checkpoint_hooks
from monolith.train.settings import AUTO, TrainSettings
from monolith.train.task import Mode, Task

if TYPE_CHECKING:
    from typing_extensions import Self


class Trainer:
    """A trainer of a task in this process, used by one thread at a time.

    `close`, or the end of a `with` block, frees the tables.

    Args:
        task: Task to train.
        settings: Options of the training; None takes the defaults.
        servers: Servers for tables and dense parameters. `LocalServers` outlive the trainer, and
            another trainer goes on with their state; a number makes servers that the trainer
            closes. `RemoteServers` hold the tables, and the dense parameters stay in the trainer.
            None or 0 keeps the tables in the trainer. Rows do not depend on this choice.
        hooks: Hooks of every `fit`.
        clock: Clock that returns seconds since 1970, for samples without a time.
        metrics: Sink of the measurements of every run; None measures nothing. The trainer flushes
            the sink, also if a run fails, and the caller closes it. A sink that fails does not end
            a run.
        job: Job of which the trainer is a worker; its servers have the tables and the dense
            parameters. `run_worker` says how a worker begins and ends.
        control: Where a controller listens, by which other processes stop, resume and save each
            `fit`; its address is in `checkpoint_dir`. None starts none.
        ranks: Tables of the ranks of a synchronous job of which the trainer is one; docs/sync.md
            says which calls all ranks make together.
        transfer: Dtype in which rows and gradients travel between ranks.

    Attributes:
        task: Task of the trainer.
        settings: Options of the training.
        columns: Names of the columns that the task reads.
        features: Features of the task with their tables.
        model: Dense model of the task.
        optimizer: Optimizer of dense parameters and tables.
        rates: Learning rates and schedule of the task.
        run: Run that counts steps over all calls of `fit`.
        state: State of the run apart from tables, model and optimizer, for checkpoints.
        servers: Servers for tables and dense parameters; None without servers.
        job: Job of which the trainer is a worker; None without one.
        served: Dense parameters on the servers of the job; None without a job.
        sync: Part of the trainer in a job of ranks; None without ranks.
        metrics: Sink of the measurements; a `NullSink` without one.
        result: Result of the last `fit`; None before.

    Example:
        >>> from monolith.nn import Feature
        >>> from monolith.ops import Ragged
        >>> class Mean(Task):
        ...     features = [Feature("user", dim=1)]
        ...     def source(self, mode):
        ...         ids = {"user": Ragged.from_lists([[7], [8]])}
        ...         return [Batch(ids, labels={"label": torch.tensor([1.0, 0.0])})] * 3
        ...     def build(self):
        ...         return torch.nn.Identity()
        ...     def loss(self, model, inputs, batch):
        ...         score = inputs.pooled["user"].squeeze(1)
        ...         return ((score - batch.label) ** 2).mean(), score
        >>> with Trainer(Mean()) as trainer:
        ...     result = trainer.fit()
        >>> result.num_steps, result.ended, result.figures.num_rows
        (3, 'end of data', 2)
    """

    def __init__(
        self,
        task: Task,
        settings: TrainSettings | None = None,
        servers: Servers | int | None = None,
        hooks: Sequence[Hook] = (),
        *,
        clock: Clock = wall_clock,
        metrics: MetricsSink | None = None,
        job: JobClient | None = None,
        control: ControlOptions | None = None,
        ranks: RankTables | None = None,
        transfer: str = "float32",
    ) -> None:
        self.task, self.hooks, self.job, self._control = task, tuple(hooks), job, control
        self.metrics = lenient_sink(metrics)
        self.settings = task.train_settings(settings or TrainSettings())
        check_control(control, self.settings, has_ranks=ranks is not None)
        self.settings = settings_of_rank(self.settings, ranks)
        self.clock = StepClock(clock)
        to_device = transfer_to(self.settings.device)
        seed_all(self.settings.seed)
        self._own_servers = LocalServers(servers) if isinstance(servers, int) and servers else None
        self.servers = servers if isinstance(servers, Servers) else self._own_servers
        if (peers := ranks or job) is not None:
            self.servers = peers.servers
        self.features = Features(
            task.features,
            missing=task.missing,
            make_table=table_maker(self.servers, self.clock, ranks),
            make_engine=engine_maker(self.servers, self.metrics, task.name, ranks, transfer),
        )
        check_hours(task.evict_every_hours, self.features.tables)
        self.model = task.build()
        on_servers = None if ranks is not None else self.servers
        self.hosted = host_parameters(self.model, on_servers, to_device)
        dense = task.optimizer(self.model)
        for parameter, state in self.hosted:
            if dense is not None:
                state.update({**dense.state.get(parameter, {}), **state})  # some begin with a state
                dense.state[parameter] = state
        self.served: ServedDense | None = None
        if job is not None:
            is_fresh = self.settings.push == 0
            self.served = ServedDense(job, self.model, dense, wants_values=is_fresh)
        if dense is None and not self.features.features:
            raise InvalidArgumentError(
                "[Trainer] expected features, or a model with parameters and an optimizer, got "
                f"neither: nothing would be trained (task {task.name!r})"
            )
        self.optimizer = Optimizer([self.features, self.model], dense, self.served)
        self.rates = TaskRates(task, self.optimizer)
        self.columns = TaskColumns.of(task)
        parts = self.features, self.model, self.optimizer, self.clock, self.served
        engines = to_device, reader_of(self.features)
        self.trainee = Trainee(task, self.settings, self.columns, *parts, *engines)
        check_scores(self.trainee, has_ranks=ranks is not None)
        known = [*ALERT_FIGURES, *task.metrics()]
        self._alert_rules = alert_rules(self.settings.alerts, known)
        self.run = Run(global_step=0)
        self.run.metadata[METRICS] = self.metrics  # for hooks that measure
        self.state = RunState(self.run, self.clock, self.rates.values)
        self.sync = None if ranks is None else RankSync(ranks, self.trainee, self.state)
        if isinstance(self.servers, RemoteServers) and ranks is None:
            self.servers.recovery = lambda: self.state.checkpoint
            self.servers.sink = self.metrics
        self.result: FitResult | None = None
        self._loop: TrainLoop | None = None  # of the running fit
        self._saves: FitSaves | None = None  # of the running fit
        self._mark: RestoreMark | None = None  # of the last restore, until a fit saves
        self._unread: tuple[object, list[SourceBatch]] = (None, [])

    @property
    def scheduler(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        """Schedule of learning rates, or None. `restore` may make a new schedule."""
        return self.rates.scheduler

    def fit(self, source: Iterable[Batch] | None = None, hooks: Sequence[Hook] = ()) -> FitResult:
        """Train until the data ends, the steps are done, or a hook or signal requests a stop.

        Ctrl-C or SIGTERM ends the run after the running step; a second signal ends the run at once.
        Batches that were read ahead of an early end are not lost: the next `fit` with the same
        iterator begins with these batches. After `restore`, `fit` goes on with the saved run: from
        the next batch, if the source has `resume` like a `Pipeline`, and until both runs together
        have made `settings.steps` steps.

        After an `AbortedError` of the source, a step, a hook or a thread, the run recovers, at most
        `settings.max_recoveries` times in a row without a new step. If no update was torn, the
        state stays and the batch of the failed step is trained once more; otherwise the newest
        checkpoint of this `fit` is restored, and the source is read from there.

        Args:
            source: Iterable of batches; None takes `task.source(Mode.TRAIN)`.
            hooks: Hooks of this run, called after the trainer's hooks and before the task's.

        Raises:
            NonFiniteLossError: The loss is NaN or infinite.
            FailedPreconditionError: The run cannot recover: there is no checkpoint of this `fit`,
                or the source has ended by its error or cannot be read from the checkpoint.
            BaseException: The error of a hook, the source, the model or a thread.
        """
        stream = self._open(Mode.TRAIN, source)
        if self.job is None:
            return self._fit(rank_source(stream, self.sync, self.state), hooks)
        begin = BeginAt.of(self.state)
        with contextlib.closing(worker_batches(self.job, stream, begin)) as batches:
            return self._fit(batches, hooks)

    def _fit(self, stream: Iterable[Batch], hooks: Sequence[Hook]) -> FitResult:
        batches = self.state.begin(stream)
        if self.job is not None:
            self.state.first = self.job.first_step
        unread = self._unread[1] if self._unread[0] is batches else []
        if not unread:
            self.state.position = position_of(batches)
        self.features.train()
        self.model.train()
        self.optimizer.zero_grad()
        schedule = None if self.scheduler is None else self.scheduler.step
        inputs = self.trainee, self.run, self.state, batches, unread, schedule
        self._loop = loop = make_loop(self.sync, *inputs)
        try:
            self.result = self._drive(loop, stream, [*self.hooks, *hooks, *self.task.hooks()])
        except BaseException as error:
            if self.sync is not None:
                self.sync.group.fail(error)  # first of all, because other ranks wait
            raise
        finally:
            self._loop = self._saves = None
            if batches is stream:
                self._unread = batches, loop.unread
            elif hasattr(loop.batches, "close"):
                loop.batches.close()  # no caller holds this iterator: free its files and threads
        return self.result

    def _open(self, mode: Mode, source: Iterable[Batch] | None) -> Iterable[Batch]:
        """Return a source, or that of the task, which reads the columns of the task alone."""
        opened = self.task.source(mode) if source is None else source
        return self.columns.select(opened, with_labels=mode != Mode.PREDICT)

    def _drive(self, loop: TrainLoop, stream: Iterable[Batch], hooks: Sequence[Hook]) -> FitResult:
        """Drive the loop to its end; hooks of user and task come before those of the trainer."""
        settings, state = self.settings, self.state
        start_time, first_step = time.perf_counter(), state.step
        num_recoveries = self.run.num_recoveries
        saving_hooks = [hook for hook in hooks if isinstance(hook, CheckpointHook)]
        hooks = [hook for hook in hooks if hook not in saving_hooks]
        saving_hooks += checkpoint_hooks(settings)
        if self.sync is not None and not self.sync.is_chief:
            saving_hooks = []
        self._saves = saves = FitSaves(saving_hooks, SaveMetrics(self.metrics))
        meter = self.trainee.new_meter()
        online = OnlineHook(self.trainee, self.metrics, lambda: loop.batches)
        state.watch(meter, online.windows)
        recorders = self._recorders(loop)
        hooks += [*alert_hooks(self._alert_rules, self.metrics, self.servers), *recorders, online]
        reported = self.trainee, meter, loop.reader, hooks, online.figures
        figures = figures_hook(self.sync, *reported)
        evals = EvalHook(self.evaluate, settings, state, meter)
        run_locks = RunLockHook()
        last_hooks = [figures, *self._maintenance(), *([evals] if settings.eval_every else [])]
        last_hooks += [AutoPrefetch(loop.reader)] if settings.prefetch == AUTO else []
        last_hooks.append(run_locks)
        fit = ControlledFit(self, loop, meter, saves.hooks)
        controls = [*control_hooks(fit, self._control), *tide_hooks(fit, settings.hours)]
        with contextlib.ExitStack() as stack:
            for recorder in recorders:
                stack.enter_context(recorder.recording(lambda: figures.figures(state.step)))
            for directory in dict.fromkeys(hook.directory for hook in saves.hooks):
                run_locks.checks.append(stack.enter_context(only_run(directory)))
                write_debugging_files(directory, self)
            stack.enter_context(saves)
            saves.attach(self)
            saves.follow(self._take_mark())
            stack.enter_context(torch_threads(settings.threads))
            stack.callback(loop.close)
            for control in controls:
                stack.enter_context(control) if isinstance(control, ControlHook) else None
            interrupt = stack.enter_context(Interrupt(loop.stop))
            state_hooks = join_ranks(loop, saves.is_due, interrupt)
            all_hooks: list[Hook] = [
                *(loop, *job_hooks(self.job, self.served, loop.stop)),
                *(*hooks, *last_hooks, *end_hooks(self.job, lambda: not loop.has_data_ended)),
                *(*state_hooks, *saves.hooks, *controls),
            ]
            loop.reader.on_wait = idle = IdleCalls(all_hooks, loop.stop)
            drive(
                loop,
                [idle, *all_hooks],
                run=self.run,
                overlap=settings.staleness_bound > 0,  # a sequential run keeps its order
                finish=loop.finish,
                recover=lambda error: self._recover(
                    loop, stream, lambda: state.watch(meter, online.windows), recorders, error
                ),
                max_recoveries=settings.max_recoveries,
                ask_stop=loop.stop if isinstance(loop, RankLoop) else None,
            )
        assert figures.last is not None
        result = FitResult(
            ended=loop.reason_of_end(interrupt.received, is_early=evals.is_early),
            num_steps=state.step - first_step,
            num_samples=state.num_samples,
            seconds=time.perf_counter() - start_time,
            figures=figures.last,
            evaluations=evals.evaluations,
            prefetch=loop.reader.capacity,
            num_recoveries=self.run.num_recoveries - num_recoveries,
            saves=saves.metrics.counts,
        )
        for recorder in recorders:
            recorder.finish(result)
        return result

    def _maintenance(self) -> list[Hook]:
        """Return the hooks that remove expired rows."""
        every, hours = self.settings.evict_every, self.task.evict_every_hours
        hooks: list[Hook] = [EvictHook(self.evict, every)] if every else []
        return [*hooks, SweepHook(self.evict, hours, self.clock)] if hours else hooks

    @property
    def may_save(self) -> bool:
        """Whether a hook may save after this step: with ranks, if all of them take part."""
        return self.sync is None or self.sync.is_save_agreed

    def _recorders(self, loop: TrainLoop) -> list[MetricsHook]:
        """Return the hook that writes measurements; an empty list without a sink."""
        if isinstance(self.metrics, NullSink):
            return []
        exchange = None if self.sync is None else self.sync.counters
        return [MetricsHook(self.metrics, self.run, self.features, loop.stages, exchange)]

    def _recover(
        self,
        loop: TrainLoop,
        stream: Iterable[Batch],
        load_sums: Callable[[], None],
        recorders: Sequence[MetricsHook],
        error: OpError,
    ) -> bool:
        """Make the state whole after an error; return whether it is that of a checkpoint."""
        loop.drop_step(stream)
        if not self.state.is_torn:
            return False
        if self._saves is not None:
            self._saves.finish(drops_failing=True)  # a restore refuses tables with open cuts
        if self.state.checkpoint is None:
            raise FailedPreconditionError(
                f"[Trainer.fit] expected a checkpoint of this fit, to go on after an update that "
                f"an {type(error).__name__} tore in step {self.state.step}, got none; set "
                "checkpoint_dir and a smaller save_every"
            ) from error
        self._restore(self.state.checkpoint)
        if self._saves is not None:
            self._saves.follow(self._take_mark())
        loop.go_back(stream, None if self.scheduler is None else self.scheduler.step)
        load_sums()
        for recorder in recorders:
            recorder.note_restore()
        return True

    def evaluate(
        self, source: Iterable[Batch] | None = None, *, at_cut: bool | None = None
    ) -> dict[str, float]:
        """Return loss and metrics over a source, without training.

        Ids without a row read as zeros. With `at_cut` all batches see the tables, parameters and
        buffers of the moment of the call, whatever other clients of the servers push meanwhile.
        The servers keep the rows that change until the evaluation ends.

        Args:
            source: Iterable of batches with labels; None takes `task.source(Mode.EVAL)`.
            at_cut: Whether to read cuts of the tables and copies of the dense model; None means
                True if other clients may push to the tables (`RemoteServers.worker`).

        Returns:
            Figures by name: "loss", the mean over samples, and the task's metrics that have a
            value.

        Raises:
            ValueError: The source has no batch.
            FailedPreconditionError: A table has four open cuts already.
            AbortedError: A server came back without its cuts; evaluate anew, as `eval_every` does.
        """
        meter, labels = self.trainee.new_meter(), self.trainee.columns.labels
        start = time.perf_counter()
        batches = self._open(Mode.EVAL, source)
        if self.sync is not None:
            self.finish_updates()
            batches = self.sync.begin_evaluation(batches)
        with self._evaluation_cut(at_cut) as cut:
            for batch in batches:
                batch = self.trainee.columns.bind(batch)
                with self._no_training(), cut.dense.in_place() if cut else contextlib.nullcontext():
                    loss, prediction = self.trainee.score(batch, cut.engine if cut else None)
                meter.add(loss, prediction, label_of(batch, labels), batch.weight)
        if self.sync is not None:
            meter = self.sync.merge(meter)
        if not meter.num_samples:
            raise ValueError("[Trainer.evaluate] expected at least one batch, got none")
        figures, seconds = {"loss": meter.loss, **meter.values()}, time.perf_counter() - start
        write_evaluation(self.metrics, figures, step=self.state.step, seconds=seconds)
        return figures

    def predict(self, source: Iterable[Batch] | None = None) -> Iterator[BatchOutput]:
        """Yield the prediction of each batch, without training.

        Args:
            source: Iterable of batches, with or without labels; None takes
                `task.source(Mode.PREDICT)`.
        """
        for batch in self._open(Mode.PREDICT, source):
            batch = self.trainee.columns.bind(batch, with_labels=False)
            with self._no_training():
                prediction = self.trainee.predict(batch)
            yield BatchOutput(batch, None, prediction)

    def evict(self, tables: Iterable[str] | None = None) -> None:
        """Remove expired rows, by the latest time that each table has seen.

        Args:
            tables: Names of tables; None means all.
        """
        self.finish_updates()
        names = self.features.tables if tables is None else tables
        for name in names if self.sync is None else self.sync.of_chief(names):
            self.features.tables[name].evict()

    def save(self, directory: "str | os.PathLike[str]") -> str:
        """Save a checkpoint from which a run goes on, and keep the newest `settings.keep`.

        During a run, a hook may call `save` between two steps; the checkpoints that are being
        written are finished first. See also `CheckpointHook`.

        Returns:
            The prefix of the checkpoint, `<directory>/model.ckpt-<step>`.

        Raises:
            FailedPreconditionError: An update began and did not end; restore a checkpoint first.
            OpError: The checkpoint cannot be written; older checkpoints stay as they were.
        """
        self._finish_saves()
        if self.sync is None:
            return save_trainer(self, directory, self.settings.keep)
        self.finish_updates()
        self.sync.gather_state()
        prefix = save_trainer(self, directory, self.settings.keep) if self.sync.is_chief else None
        return str(self.sync.group.control.share(prefix))

    def restore(self, path: "str | os.PathLike[str]", *, fallback: bool = False) -> Checkpoint:
        """Restore a checkpoint; the next `fit` goes on with the batch after the checkpoint.

        Args:
            path: Folder, whose current checkpoint is restored, or prefix of a checkpoint.
            fallback: Whether to read every byte first and restore the newest undamaged checkpoint.

        Raises:
            FailedPreconditionError: A `fit` is running.
            NotFoundError: There is no checkpoint, or the checkpoint lacks a part of this trainer.
            InvalidArgumentError: A shape or the config of a table differs.
            DataLossError: A file is damaged.
        """
        if self._loop is not None:
            raise FailedPreconditionError("[Trainer.restore] expected no fit that runs, got one")
        self.optimizer.zero_grad()
        self._unread = None, []
        checkpoint = self._restore(path, fallback=fallback)
        self.state.note_checkpoint(checkpoint.prefix)
        return checkpoint

    def _restore(self, path: "str | os.PathLike[str]", *, fallback: bool = False) -> Checkpoint:
        """Restore a checkpoint, and mark the moment, from which saves can continue it."""
        if (mark := self._take_mark()) is not None:
            mark.drop()
        checkpoint = restore_trainer(self, path, fallback=fallback)
        if self.sync is None or self.sync.is_chief:
            self._mark = RestoreMark.set(checkpoint.prefix, self.features.tables.values())
        return checkpoint

    def _take_mark(self) -> RestoreMark | None:
        mark, self._mark = self._mark, None
        return mark

    def close(self) -> None:
        """Free the tables and close the trainer's own servers; a second call is fine.

        Tables on servers of the caller stay. A checkpoint that is being written is finished
        first.
        """
        self._finish_saves()
        self.features.close()
        if self._own_servers is not None:
            self._own_servers.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _finish_saves(self) -> None:
        if self._saves is not None:
            self._saves.finish()

    def finish_updates(self) -> None:
        """Wait for an update that runs on a thread, so that the tables have all updates."""
        if self._loop is not None:
            self._loop.updates.wait()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Wait for the running update, and let none begin until the block ends.

        Cuts of several tables and copies of dense parameters that are made in the block are of one
        moment, as far as this trainer alone changes them, or the workers of its job: they hold
        their pushes, and the model and the step are those of the servers.

        Raises:
            DeadlineExceededError: The block took so long that workers may have pushed meanwhile.
        """
        self.finish_updates()
        with contextlib.nullcontext() if self.job is None else self.job.quiet():
            if self.served is not None:
                self.run.global_step = max(self.state.step, self.served.take_all())
            yield

    @contextlib.contextmanager
    def _evaluation_cut(self, at_cut: bool | None) -> Iterator[EvaluationCut | None]:
        """Give the tables and dense tensors as they are now; None for those of each moment."""
        if at_cut is None:
            at_cut = self.servers is not None and self.servers.worker[1] > 1
        if not at_cut:
            yield None
            return
        with self.quiet():
            cut = EvaluationCut(DenseCopies(self.model), cut_tables(self.features.pending.engine))
        with cut.engine:
            yield cut

    @contextlib.contextmanager
    def _no_training(self) -> Iterator[None]:
        """Put the dense model into eval mode and disable gradients until the block ends.

        Tensors that the model's code records are those of the training only.
        """
        self.finish_updates()
        was_training = self.model.training
        summaries = self.run.metadata.pop(SUMMARIES, None)
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train(was_training)
            if summaries is not None:
                self.run.metadata[SUMMARIES] = summaries
