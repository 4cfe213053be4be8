"""`distributed_sync_train`: one rank of a synchronous job."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from monolith.checkpoint import find
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.environment import is_sync_training_wanted
from monolith.errors import InvalidArgumentError
from monolith.native_training import hvd_lib
from monolith.native_training.hooks.current_run import CurrentRunHook
from monolith.native_training.hooks.eof_aware_task import EofAwareTask
from monolith.native_training.hooks.rank_hooks import REQ_TIME, SyncTrainingInfoHook
from monolith.native_training.jobs.cpu_training import CpuTraining
from monolith.native_training.jobs.distributed import settings_of
from monolith.native_training.jobs.training_config import (
    CpuTrainingConfig,
    DistributedCpuTrainingConfig,
)
from monolith.native_training.tasks import task_context
from monolith.native_training.tasks.native_task import NativeTask
from monolith.observe import MetricsSink, NullSink, TensorBoardSink
from monolith.train.driver import Coordinator, Hook, Run, StepContext, StepResults
from monolith.train.run_metrics import FitResult
from monolith.train.run_state import seed_all
from monolith.train.settings import TrainSettings
from monolith.train.trainer import Trainer

_log = logging.getLogger(__name__)


def init_sync_train_and_update_conf(config: CpuTrainingConfig) -> None:
    """Join the ranks, and write the place of this process into a config."""
    hvd_lib.init()
    config.num_ps, config.reorder_fids_in_data_pipeline = 0, True
    config.index, config.num_workers = hvd_lib.rank(), hvd_lib.size()
    config.enable_variable_partition = False


def distributed_sync_train(
    config: DistributedCpuTrainingConfig,
    params: Any,
    user_hooks: Sequence[Hook],
    metrics: MetricsSink | None,
) -> FitResult:
    """Train as one rank; see `native_training.cpu_training.distributed_sync_train`."""
    _check(config)
    hvd_lib.init()
    if hvd_lib.rank() != config.index:
        raise AssertionError(
            "Given RunConfig.index should be consistent with hvd.rank(). Got "
            f"{config.index} and {hvd_lib.rank()}"
        )
    if config.num_workers != hvd_lib.size():
        raise InvalidArgumentError(
            f"[distributed_sync_train] expected num_workers={hvd_lib.size()}, the number of ranks, "
            f"got {config.num_workers}"
        )
    settings = sync_settings(config)
    seed_all(settings.seed)  # a task may make its dense model in its constructor
    params.mode = config.mode
    task = params.instantiate()
    if not isinstance(task, NativeTask):
        raise ValueError(f"distributed train only support NativeTask. Got {type(task).__name__}")
    training = CpuTraining(config, EofAwareTask(task, bool(config.use_dataservice)))
    with _summaries(config, metrics) as sink, RankTables(hvd_lib.group()) as ranks:
        return fit_ranks(training, settings, ranks, user_hooks, sink)


def fit_ranks(
    training: CpuTraining,
    settings: TrainSettings,
    ranks: RankTables,
    user_hooks: Sequence[Hook] = (),
    metrics: MetricsSink | None = None,
) -> FitResult:
    """Train a task on ranks by the rule of the reference system, from the newest checkpoint on.

    Gradients of dense parameters are averaged over the ranks and those of rows are added up, both
    of the loss of each rank as it is.

    Args:
        training: Task with its place in the job.
        settings: Options of the trainer.
        ranks: Tables of the ranks.
        user_hooks: Hooks of the run.
        metrics: Sink of the measurements of rank 0.
    """
    with (
        task_context.with_ctx(training.context),
        Trainer(training.task, settings, metrics=metrics, ranks=ranks) as trainer,
    ):
        assert trainer.sync is not None
        trainer.sync.average_dense()
        directory = settings.checkpoint_dir
        newest = find(directory) if directory is not None and ranks.group.rank == 0 else None
        prefix = ranks.group.control.share(None if newest is None else newest.prefix)
        if prefix is not None:
            trainer.restore(prefix)
        hooks: list[Hook] = [ReqTimeHook(), *user_hooks, CurrentRunHook()]
        if ranks.group.rank == 0:
            hooks.append(SyncTrainingInfoHook(trainer.features.tables))
        return trainer.fit(hooks=hooks)


def sync_settings(config: DistributedCpuTrainingConfig) -> TrainSettings:
    """Return the options of the trainer of a rank that a config asks for.

    Example:
        >>> config = DistributedCpuTrainingConfig(enable_pipelined_fwda2a=True)
        >>> sync_settings(config).staleness_bound
        1
    """
    is_late = config.enable_pipelined_bwda2a or config.enable_async_optimize
    settings = settings_of(config)
    return replace(
        settings,
        prefetch=config.embedding_prefetch_capacity + int(config.enable_pipelined_fwda2a),
        push=int(is_late or settings.push),
        log_every=config.log_step_count_steps,
        checkpoint_dir=config.model_dir or None,
    )


def _check(config: DistributedCpuTrainingConfig) -> None:
    config.enable_sync_training |= is_sync_training_wanted()
    if not config.enable_sync_training:
        raise ValueError(
            "[distributed_sync_train] expected enable_sync_training=True or the variable "
            "MONOLITH_WITH_HOROVOD, got neither"
        )
    config.check()
    if config.num_ps:
        raise ValueError(
            f"[distributed_sync_train] expected num_ps=0, got {config.num_ps}; the ranks have the "
            "tables"
        )


class _Summaries:
    """The sink of rank 0 as a context: that of the caller, or an event file in `model_dir`."""

    def __init__(self, sink: MetricsSink, *, is_own: bool) -> None:
        self._sink, self._is_own = sink, is_own

    def __enter__(self) -> MetricsSink:
        return self._sink

    def __exit__(self, *error: object) -> None:
        if self._is_own:
            self._sink.close()


def _summaries(config: DistributedCpuTrainingConfig, given: MetricsSink | None) -> _Summaries:
    if config.index != 0:
        return _Summaries(NullSink(), is_own=True)
    if given is not None or not config.model_dir:
        return _Summaries(given or NullSink(), is_own=False)
    return _Summaries(TensorBoardSink(config.model_dir), is_own=True)


class ReqTimeHook(Hook):
    """Keeps the latest time of the samples of this rank in the collection "req_time" of the run."""

    def __init__(self) -> None:
        self._latest: int | None = None

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Add the time to the collection."""
        if run.num_recoveries == 0:
            run.add(REQ_TIME, lambda: self._latest)

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Take over the times of the step."""
        for part in results.value.parts:
            times: torch.Tensor | None = part.batch.time
            if times is not None and len(times):
                self._latest = max(self._latest or 0, int(times.max()))
