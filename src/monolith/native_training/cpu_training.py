"""Give the configs of jobs, and the functions that train a task with servers."""

from collections.abc import Sequence
from typing import Any

from monolith.cluster.discovery import ServiceDiscovery
from monolith.native_training.jobs.cpu_training import EXTRA_PS_BENCHMARK_SECS, CpuTraining
from monolith.native_training.jobs.distributed import ProcessOptions
from monolith.native_training.jobs.distributed import distributed_train as _distributed_train
from monolith.native_training.jobs.ps_end import shutdown_ps
from monolith.native_training.jobs.started_servers import NodeAliveCheckerError
from monolith.native_training.jobs.sync_train import (
    distributed_sync_train as _distributed_sync_train,
)
from monolith.native_training.jobs.sync_train import (
    init_sync_train_and_update_conf as init_sync_train_and_update_conf,
)
from monolith.native_training.jobs.training_config import (
    CpuTrainingConfig,
    DistributedCpuTrainingConfig,
)
from monolith.native_training.tasks.local import local_train
from monolith.observe.metrics import MetricsSink
from monolith.train.driver import Hook
from monolith.train.roles.worker import JobReport
from monolith.train.run_metrics import FitResult

__all__ = [
    "CpuTraining",
    "CpuTrainingConfig",
    "DistributedCpuTrainingConfig",
    "NodeAliveCheckerError",
    "distributed_sync_train",
    "distributed_train",
    "init_sync_train_and_update_conf",
    "local_train",
]

# Tests of a job replace them.
_EXTRA_PS_BENCHMARK_SECS = EXTRA_PS_BENCHMARK_SECS
_shutdown_ps = shutdown_ps


def distributed_train(
    config: DistributedCpuTrainingConfig,
    discovery: ServiceDiscovery,
    params: Any,
    sync_backend: Any = None,
    user_hooks: Sequence[Hook] = (),
    **options: Any,
) -> JobReport | None:
    """Run one process of a job with servers until the job ends: a server, or a worker.

    Worker 0 is the chief, which restores and saves, and lets the servers end. After a
    `DeadlineExceededError` or `UnavailableError` a worker waits `config.retry_wait_in_secs`, looks
    for the servers again and trains on: without a limit while the servers are the same, and
    `config.max_retry_times` times after they changed.

    Args:
        config: Role and number of the process, and the options of the job. A discovery that fixes
            role and number, such as that of TF_CONFIG, sets both here.
        discovery: Where processes find each other; closed by the caller.
        params: Parameters of a `NativeTask`, the same in all processes.
        sync_backend: Refused, as there is none yet.
        user_hooks: Hooks of a worker.
        options: Fields of `ProcessOptions`, such as `keys` and `bind` for jobs of several machines.

    Returns:
        The report of a worker; None of a server.

    Raises:
        NotImplementedError: A field of the config, or a `sync_backend`, needs a part that is not
            here.
        FailedPreconditionError: Another process of the job has this role and number.
        ValueError: The config describes no process of a job.
    """
    if sync_backend is not None:
        raise NotImplementedError(
            f"[distributed_train] expected sync_backend=None, got {sync_backend!r}; a backend "
            "needs serving that follows the training"
        )
    given = {
        "benchmark_seconds": _EXTRA_PS_BENCHMARK_SECS,
        "shutdown": _shutdown_ps,
        **options,
    }
    return _distributed_train(config, discovery, params, user_hooks, ProcessOptions(**given))


def distributed_sync_train(
    config: DistributedCpuTrainingConfig,
    params: Any,
    sync_backend: Any = None,
    user_hooks: Sequence[Hook] = (),
    *,
    metrics: MetricsSink | None = None,
) -> FitResult:
    """Train a task as one rank of a synchronous job, until one rank has no more data.

    Each rank calls the input function for data of its own. Gradients of dense parameters are
    averaged over the ranks, and those of rows are added up, both of the loss of each rank as it is:
    the result depends on the number of ranks. `monolith train --mode sync` trains any task so that
    it does not.

    Args:
        config: Options of the job. Its index and `num_workers` are rank and number of ranks
            (`init_sync_train_and_update_conf`); `enable_sync_training` is true, or the variable
            MONOLITH_WITH_HOROVOD is set.
        params: Parameters of a `NativeTask`, the same in all ranks.
        sync_backend: Refused, as there is none yet.
        user_hooks: Hooks of the run, the same in all ranks.
        metrics: Sink of the measurements of rank 0; None writes an event file into
            `config.model_dir`. Other ranks write nothing.

    Raises:
        AssertionError: The index is not the rank.
        InvalidArgumentError: The ranks have different tasks or settings.
        NotImplementedError: A field of the config, or a `sync_backend`, needs a part that is not
            here.
        UnavailableError: Another rank has failed.
        ValueError: The config describes no rank, or the parameters no native task.
    """
    if sync_backend is not None:
        raise NotImplementedError(
            f"[distributed_sync_train] expected sync_backend=None, got {sync_backend!r}; give "
            "user_hooks a ParameterSyncHook with the client of a backend"
        )
    return _distributed_sync_train(config, params, user_hooks, metrics)
