"""`Trainer`: fits, evaluates and predicts with a task."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from monolith.checkpoint import Checkpoint
from monolith.cluster import LocalServers
from monolith.data import Batch
from monolith.errors import FailedPreconditionError
from monolith.nn import Features
from monolith.optim import Optimizer
from monolith.table.calls import Clock, wall_clock
from monolith.train.checkpoints import restore_trainer, save_trainer
from monolith.train.driver import Hook, Run
from monolith.train.figures import Meter
from monolith.train.fit import Fit, FitResult, SourceBatch
from monolith.train.hosting import engine_maker, host_parameters, table_maker
from monolith.train.inputs import Inputs, TaskColumns, dense_matrix, outputs_of
from monolith.train.loop import BatchOutput, Updates
from monolith.train.rates import TaskRates
from monolith.train.run_state import RunState, StepClock, position_of, seed_all
from monolith.train.settings import TrainSettings
from monolith.train.task import Mode, Task

if TYPE_CHECKING:
    from typing_extensions import Self


class Trainer:
    """Trains a task in this process. Close it: it holds the tables. One thread uses it at a time.

    Args:
        task: what to train.
        settings: how.
        servers: hold the tables and the dense parameters, and outlive the trainer, so that another
            one goes on where it ended. A number: servers of its own, closed with it. None or 0:
            tables in the trainer. Rows are the same.
        hooks: of every `fit`.
        clock: seconds since 1970, for updates with samples that have no time.

    Attributes:
        features: the tables.
        model: the dense model.
        optimizer: of both.
        rates: the learning rates and the schedule that the task gave.
        run: counts steps over all calls of `fit`.
        state: what a checkpoint has beside tables, model and optimizer.
        servers: that hold tables and dense parameters; None: there are none.
        result: of the last `fit`.

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
        servers: LocalServers | int | None = None,
        hooks: Sequence[Hook] = (),
        *,
        clock: Clock = wall_clock,
    ) -> None:
        self.task, self.hooks = task, tuple(hooks)
        self.settings = settings or TrainSettings()
        self.clock = StepClock(clock)
        seed_all(self.settings.seed)
        self._own_servers = LocalServers(servers) if isinstance(servers, int) and servers else None
        given = servers if isinstance(servers, LocalServers) else None
        self.servers = given or self._own_servers
        self.features = Features(
            task.features,
            make_table=table_maker(self.servers, self.clock),
            make_engine=engine_maker(self.servers),
        )
        self.model = task.build()
        self.hosted = host_parameters(self.model, self.servers)
        dense = task.optimizer(self.model)
        for parameter, state in self.hosted:
            if dense is not None:
                dense.state[parameter] = state
        self.optimizer = Optimizer([self.features, self.model], dense)
        self.rates = TaskRates(task, self.optimizer)
        self._labels = [task.label] if isinstance(task.label, str) else list(task.label)
        self.columns = TaskColumns(self._labels, task.dense)
        self.run = Run(global_step=0)
        self.state = RunState(self.run, self.clock, self.rates.values)
        self.result: FitResult | None = None
        self._running: Fit | None = None
        self._left: tuple[object, list[SourceBatch]] = (None, [])

    @property
    def scheduler(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        """The schedule of learning rates; None without one. A restore may make a new one."""
        return self.rates.scheduler

    def fit(self, source: Iterable[Batch] | None = None, hooks: Sequence[Hook] = ()) -> FitResult:
        """Train until the data ends, the steps are done, or somebody requests a stop.

        Ctrl-C or SIGTERM ends the run after the step that runs; a second signal ends it at once.
        Batches that were read ahead of such an end are not lost: the next `fit` with the same
        iterator begins with them. After `restore` it goes on with the `fit` that was saved: with
        the next batch, if the source has `resume` as a `Pipeline` has, and until the steps of both
        are done.

        Args:
            source: of batches; `task.source(Mode.TRAIN)` if None.
            hooks: of this run, beside those of the trainer and the task.

        Raises:
            NonFiniteLossError: the loss is NaN or infinite.
            BaseException: what a hook, the source, the model or a thread raised.
        """
        given = self.task.source(Mode.TRAIN) if source is None else source
        batches = self.state.begin(given)
        left = self._left[1] if self._left[0] is batches else []
        if not left:
            self.state.position = position_of(batches)
        self.features.train()
        self.model.train()
        self.optimizer.zero_grad()
        self._running = fit = Fit(self, batches, left)
        try:
            self.result = fit.run([*self.hooks, *hooks, *self.task.hooks()])
        finally:
            self._running = None
            if batches is given:
                self._left = batches, fit.left
            elif hasattr(batches, "close"):
                batches.close()  # nobody else has it: what it keeps open goes now
        return self.result

    def evaluate(self, source: Iterable[Batch] | None = None) -> dict[str, float]:
        """Loss and metrics over a source; nothing is trained, and ids without a row read as zeros.

        Args:
            source: of batches; `task.source(Mode.EVAL)` if None.

        Returns:
            "loss", the mean over samples, and the metrics of the task that have a value.

        Raises:
            ValueError: the source has no batch.
        """
        meter = self.meter()
        for batch in self.task.source(Mode.EVAL) if source is None else source:
            batch = self.columns.bind(batch)
            with self._no_training():
                inputs = self.inputs(batch, is_training=False)
                loss, prediction = outputs_of(self, inputs, batch, is_training=False)
            meter.add(loss.item(), prediction, self.label_of(batch), batch.weight)
        if not meter.num_samples:
            raise ValueError("[Trainer.evaluate] expected at least one batch, got none")
        return {"loss": meter.loss, **meter.values()}

    def predict(self, source: Iterable[Batch] | None = None) -> Iterator[BatchOutput]:
        """The prediction of each batch; nothing is trained.

        Args:
            source: of batches, labels may be missing; `task.source(Mode.PREDICT)` if None.
        """
        for batch in self.task.source(Mode.PREDICT) if source is None else source:
            batch = self.columns.bind(batch, with_labels=False)
            with self._no_training():
                inputs = self.inputs(batch, is_training=False)
                prediction = self.task.predict(self.model, inputs, batch)
            yield BatchOutput(batch, None, prediction)

    def save(self, directory: "str | os.PathLike[str]") -> str:
        """Save all that a run needs to go on; `settings.keep` checkpoints are kept.

        In a run, between two steps: a hook may call it. See also `CheckpointHook`.

        Returns:
            The prefix of the checkpoint, `<directory>/model.ckpt-<step>`.

        Raises:
            OpError: it cannot be written; older checkpoints are as they were.
        """
        return save_trainer(self, directory, self.settings.keep)

    def restore(self, path: "str | os.PathLike[str]", *, fallback: bool = False) -> Checkpoint:
        """Take the state of a checkpoint; the next `fit` goes on with the batch after it.

        Args:
            path: a directory, whose current checkpoint is taken, or the prefix of a checkpoint.
            fallback: read every byte, and take the newest checkpoint that is whole.

        Raises:
            FailedPreconditionError: `fit` runs.
            NotFoundError: there is no checkpoint, or it lacks a part of this trainer.
            InvalidArgumentError: a shape or the config of a table differs.
            DataLossError: a file is damaged.
        """
        if self._running is not None:
            raise FailedPreconditionError("[Trainer.restore] expected no fit that runs, got one")
        self.optimizer.zero_grad()
        self._left = None, []
        return restore_trainer(self, path, fallback=fallback)

    def close(self) -> None:
        """Free the tables, unless servers hold them. Closing twice is fine."""
        if self.servers is None:
            self.features.close()
        if self._own_servers is not None:
            self._own_servers.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Stages of a step, for `loop.py` and `fit.py`.

    def inputs(self, batch: Batch, *, is_training: bool = True) -> Inputs:
        """Look up the features of a batch. Safe beside a step."""
        pooled = self.features.read(batch.features, is_training=is_training)
        return Inputs(pooled, dense_matrix(batch, self.task.dense))

    def precision(self) -> AbstractContextManager[Any]:
        """In which the dense part computes."""
        if self.settings.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast("cpu", torch.bfloat16)

    def clip_gradients(self) -> None:
        """Scale the gradients of dense parameters and tables to one norm, if they are above it."""
        if self.settings.clip_norm is not None:
            groups = self.optimizer.param_groups
            parameters = [parameter for group in groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.settings.clip_norm)

    def step_with(self, updates: Updates) -> None:
        """Step dense parameters and tables, these maybe on a thread; gradients are gone then."""
        optimizer = self.optimizer
        updates.apply(optimizer.begin_step() if self.settings.push else optimizer.step)
        if optimizer.dense is not None:
            optimizer.dense.zero_grad()

    def step_schedule(self) -> None:
        """Set the learning rates of the next step."""
        if self.scheduler is not None:
            self.scheduler.step()

    def finish_updates(self) -> None:
        """Wait for an update that runs beside the step: then the tables are those of the step."""
        if self._running is not None:
            self._running.updates.wait()

    def meter(self) -> Meter:
        """For losses and metrics; those that nobody chose may turn out not to fit."""
        return Meter(self.task.metrics, is_lenient=type(self.task).metrics is Task.metrics)

    def label_of(self, batch: Batch) -> torch.Tensor | None:
        """(batch,); (batch, num_labels) of several; None of none."""
        if len(self._labels) == 1:
            return batch.labels[self._labels[0]]
        return torch.stack([batch.labels[n] for n in self._labels], 1) if self._labels else None

    @contextlib.contextmanager
    def _no_training(self) -> Iterator[None]:
        """Of the dense model; the tables are told by each call, for lookups may run beside."""
        self.finish_updates()
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), self.precision():
                yield
        finally:
            self.model.train(was_training)
