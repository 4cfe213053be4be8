"""Train or evaluate a task of the registry on an accelerator: `TPURunner` and `main`."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from monolith.checkpoint import Checkpoint, find
from monolith.checkpoint.find import existing_checkpoints
from monolith.cluster.ranks.rank_group import RankGroup
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.environment import torchrun_variables
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.native_training import hvd_lib
from monolith.native_training.jobs.cpu_training import CpuTraining
from monolith.native_training.jobs.sync_train import fit_ranks
from monolith.native_training.jobs.training_config import CpuTrainingConfig
from monolith.native_training.runner.accelerated_task import (
    AcceleratedTask,
    EmbeddingSpec,
    accelerated,
    embedding_spec,
)
from monolith.native_training.runner.devices import await_healthy, check_device, device_of
from monolith.native_training.runner.runner_flags import RunnerFlags
from monolith.native_training.saver.tide import TimeSource
from monolith.native_training.tasks import task_context
from monolith.native_training.tasks.native_task import NativeTask
from monolith.native_training.tasks.registry import get_params
from monolith.native_training.util.params import Params
from monolith.observe import MetricsSink, NullSink, TensorBoardSink
from monolith.train.run_metrics import FitResult
from monolith.train.run_state import seed_all
from monolith.train.settings import WAIT, TrainSettings
from monolith.train.trainer import Trainer

_log = logging.getLogger(__name__)

CPU_TEST_BATCH_SIZE = 128
"""Value of `train.per_replica_batch_size` in a CPU test."""

_NEXT_CHECKPOINT_SECONDS = 5 * 3600.0
_POLL_SECONDS = 1.0
_REPORT_STEPS = 100  # without summaries
_SYSTEM_TIME = TimeSource()


class TPURunner:
    """Trains a native task on an accelerator, or evaluates the checkpoints of such a training.

    Processes that torchrun has started are ranks, which train together in a CPU test: each calls
    the input function for itself, and has the rows that the flag `partition_strategy` gives it.

    Args:
        task_param: Parameters of the task; changed: `accelerator` becomes "tpu", and the flag
            `overwrite_end_date` replaces `train.end_date`.
        flags: Flags; None takes those of the process.
        source: The time.

    Attributes:
        flags: The flags.
        params: Parameters of the task.
        device: Name of the device; "cpu" in a CPU test.
        global_step: Step of the newest checkpoint when `run` was called; 0 without one.
        global_batch_size: Batch size of all replicas together; None if the task names none.

    Raises:
        InvalidArgumentError: There is no folder for checkpoints.
        NotImplementedError: The accelerator is `xla`.
        ValueError: The accelerator is unknown.
    """

    def __init__(
        self,
        task_param: Params,
        flags: RunnerFlags | None = None,
        *,
        source: TimeSource = _SYSTEM_TIME,
    ) -> None:
        self.flags = flags = RunnerFlags.parse() if flags is None else flags
        self.params, self._source = task_param, source
        if not flags.model_dir:
            raise InvalidArgumentError(
                "[TPURunner] expected a folder for checkpoints, got none; set --model_dir"
            )
        self._model_dir = flags.model_dir
        self.params.accelerator = "tpu"
        self.device = "cpu" if flags.cpu_test else device_of(flags.tpu or "tpu")
        self.global_step = 0
        self.global_batch_size: int | None = None
        self._save_every = self._decide_save_every()
        self._decide_end_date()

    def _decide_save_every(self) -> int | None:
        of_task = self.params.train.save_checkpoints_steps
        steps = self.flags.save_checkpoints_steps if of_task is None else of_task
        origin = "the flag" if of_task is None else "the task"
        _log.info("save_checkpoints_steps is %s, of %s", steps, origin)
        return steps

    def _decide_end_date(self) -> None:
        date = self.flags.overwrite_end_date
        if date and "end_date" in self.params.train:
            _log.info("train.end_date is %s in place of %s", date, self.params.train.end_date)
            self.params.train.end_date = date

    def run(self) -> FitResult | Mapping[int, Mapping[str, float]]:
        """Train or evaluate, as the flag `mode` says.

        Returns:
            The result of the training, or the figures of each evaluated checkpoint by its step.

        Raises:
            AssertionError: A CPU test has another mode than train.
            FailedPreconditionError: The device is not there.
            InvalidArgumentError: Ranks are to train on devices, or to evaluate.
            TypeError: The mode is train_and_eval, or the parameters are those of no native task.
        """
        mode = self.flags.mode
        if mode == "train_and_eval":
            raise TypeError("train_and_eval has not been supported.")
        if self.flags.cpu_test:
            assert mode == "train", f"[TPURunner] expected mode train with cpu_test, got {mode}"
        group = _joined_ranks()
        if group is not None and not self.flags.cpu_test:
            raise InvalidArgumentError(
                f"[TPURunner] expected one process for {self.device!r}, got {group.size} ranks of "
                "torchrun; the runner has ranks in a CPU test only: train with --cpu_test, start "
                "one process, or train a `Task` by monolith train --mode sync --device cuda"
            )
        checkpoint = find(self._model_dir)
        self.global_step = (checkpoint.step or 0) if checkpoint is not None else 0
        _log.info("mode %s from step %d on %s", mode, self.global_step, self.device)
        if group is not None:
            return self._train_as_rank(group)
        return self._train(checkpoint) if mode == "train" else self._evaluate_all()

    def _train(self, checkpoint: Checkpoint | None) -> FitResult:
        with self._summaries(self._model_dir) as sink:
            task = self._task("train")
            make = (
                self.create_tpu_estimator_on_cpu
                if self.flags.cpu_test
                else self.create_tpu_estimator
            )
            trainer, _ = make(task, sink)
            with trainer:
                if checkpoint is not None:
                    trainer.restore(checkpoint.prefix)
                return trainer.fit()

    def _train_as_rank(self, group: RankGroup) -> FitResult:
        """Train by the rule of the reference system; see `fit_ranks`."""
        config = CpuTrainingConfig(
            enable_sync_training=True, num_workers=group.size, index=group.rank
        )
        place = task_context.NativeTaskContext(
            num_workers=group.size, worker_index=group.rank, server_type="worker"
        )
        with task_context.with_ctx(place):
            task = self._task("train")
        self.global_batch_size = group.size * CPU_TEST_BATCH_SIZE
        strategy = self.flags.partition_strategy
        with (
            self._summaries(self._model_dir, is_silent=group.rank > 0) as sink,
            RankTables(group, partition_strategy=strategy) as ranks,
        ):
            settings = self._settings(task.embedding)
            return fit_ranks(CpuTraining(config, task), settings, ranks, metrics=sink)

    def _summaries(self, folder: str, *, is_silent: bool = False) -> "_Summaries":
        is_wanted = self.flags.host_call_every_n_steps and not is_silent
        return _Summaries(folder if is_wanted else None)

    def _task(self, mode: str) -> AcceleratedTask:
        """Make the task, and decide how its rows are trained."""
        params = self.params.copy()
        params.mode = mode
        if self.flags.cpu_test:
            params.accelerator = None
            params.train.per_replica_batch_size = CPU_TEST_BATCH_SIZE
        seed_all(TrainSettings().seed)  # the constructor makes the dense model
        task = params.instantiate()
        if not isinstance(task, NativeTask):
            raise TypeError(
                f"[TPURunner] expected the parameters of a NativeTask, got those of "
                f"{type(task).__name__}; train other tasks by `monolith train --device cuda`"
            )
        made = accelerated(task, is_cpu_test=self.flags.cpu_test)
        made.embedding = embedding_spec(
            made, self.flags.partition_strategy, is_pipelined=self.flags.pipeline_execution
        )
        _log.info("embeddings: %s", made.embedding)
        return made

    def create_tpu_estimator(self, task: AcceleratedTask, sink: MetricsSink) -> tuple[Trainer, int]:
        """Return the trainer on the device, after a check of the device, and the replicas."""
        check_device(self.device)
        if self.flags.enable_tpu_version_config:
            await_healthy(self.device, sleep=self._source.sleep)
        num_replicas = 1
        self._decide_batch_size(num_replicas)
        return Trainer(task, self._settings(task.embedding), metrics=sink), num_replicas

    def create_tpu_estimator_on_cpu(
        self, task: AcceleratedTask, sink: MetricsSink
    ) -> tuple[Trainer, int]:
        """Return the trainer of a CPU test: one replica, and a fixed batch size."""
        self.global_batch_size = CPU_TEST_BATCH_SIZE
        return Trainer(task, self._settings(task.embedding), metrics=sink), 1

    def _decide_batch_size(self, num_replicas: int) -> None:
        size = self.params.train.per_replica_batch_size
        self.global_batch_size = None if size is None else num_replicas * size
        _log.info("%d replicas, %s samples together", num_replicas, self.global_batch_size)

    def _settings(self, spec: EmbeddingSpec | None) -> TrainSettings:
        return TrainSettings(
            device=self.device,
            prefetch=int(spec is not None and spec.is_pipelined),
            log_every=self.flags.host_call_every_n_steps or _REPORT_STEPS,
            checkpoint_dir=self._model_dir,
            save_every=self._save_every,
            busy_save=WAIT,
        )

    def _evaluate_all(self) -> Mapping[int, Mapping[str, float]]:
        """Evaluate checkpoints until one has the last step, or none comes for 5 hours."""
        found: dict[int, Mapping[str, float]] = {}
        last_step = self.params.train.max_steps
        task = self._task("eval")
        with TensorBoardSink(os.path.join(self._model_dir, "eval")) as sink:
            trainer, _ = self.create_tpu_estimator(task, sink)
            with trainer:
                for prefix in self._checkpoints():
                    try:
                        step = trainer.restore(prefix).step or 0
                    except (NotFoundError, DataLossError) as error:
                        _log.warning("the checkpoint %s is skipped: %s", prefix, error)
                        continue
                    found[step] = trainer.evaluate()
                    _log.info("step %d: %s", step, found[step])
                    if last_step is not None and step >= last_step:
                        break
        return MappingProxyType(found)

    def _checkpoints(self) -> Iterator[str]:
        """Yield each checkpoint of the folder once, and wait for further ones."""
        seen: set[str] = set()
        last_time = self._source.monotonic()
        while True:
            new = [p for p in existing_checkpoints(self._model_dir) if p not in seen]
            for prefix in new:
                seen.add(prefix)
                yield prefix
                last_time = self._source.monotonic()
            if not new:
                if self._source.monotonic() - last_time >= _NEXT_CHECKPOINT_SECONDS:
                    _log.warning("no checkpoint within %g s", _NEXT_CHECKPOINT_SECONDS)
                    return
                self._source.sleep(_POLL_SECONDS)


def _joined_ranks() -> RankGroup | None:
    """Join the ranks that torchrun has started; None if this process is alone."""
    if torchrun_variables().get("WORLD_SIZE", "1") == "1":
        return None
    hvd_lib.init()
    group: RankGroup = hvd_lib.group()
    return group


class _Summaries:
    """An event file in a folder as a context; nothing is written without a folder."""

    def __init__(self, folder: str | None) -> None:
        self._sink: MetricsSink = NullSink() if folder is None else TensorBoardSink(folder)

    def __enter__(self) -> MetricsSink:
        return self._sink

    def __exit__(self, *error: object) -> None:
        self._sink.close()


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the task that the flags name; return what `TPURunner.run` returns.

    Args:
        arguments: Flags; None takes those of the process.

    Raises:
        InvalidArgumentError: The flags name no task.
    """
    flags = RunnerFlags.parse(arguments)
    if not flags.task:
        raise InvalidArgumentError("[tpu_runner] expected a task, got none; set --task")
    for name, value in asdict(flags).items():
        _log.info("flag %s: %s", name, value)
    params = get_params(flags.task)
    _log.info("parameters of the task:\n%s", params)
    return TPURunner(params, flags).run()
