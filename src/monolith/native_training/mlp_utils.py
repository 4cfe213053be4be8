"""The MLP launch environment of the reference system: roles, data service, failures of MPI."""

from typing import Any

from monolith.cluster.data_service.profiler_endpoint import profiler_trace
from monolith.cluster.discovery.mlp_env import MLPEnv, check_port
from monolith.native_training.hooks.dataset_hook import (
    BroadcastDatasetHook,
    DatasetInitializerHook,
    after_create_session,
    begin,
    make_dataset_hook,
)
from monolith.native_training.jobs import mlp_roles
from monolith.native_training.jobs.mlp_roles import RunnerSettings, ServiceStarters
from monolith.native_training.jobs.mpi_abort import add_mpi_exception_hook

__all__ = [
    "BroadcastDatasetHook",
    "DatasetInitializerHook",
    "EXTRA_DSWORKERS",
    "MLPEnv",
    "RunnerSettings",
    "ServiceStarters",
    "add_mpi_exception_hook",
    "after_create_session",
    "begin",
    "check_port",
    "make_dataset_hook",
    "mlp_pass",
    "profiler_trace",
]

EXTRA_DSWORKERS: list[Any] = []
"""Data workers in the process of a worker, which live as long as the process."""


def mlp_pass(
    dispatcher_role: str = "dispatcher",
    dsworker_role: str = "dsworker",
    worker_role: str = "worker",
    ps_role: str = "ps",
    *,
    settings: Any = None,
    task: str | None = None,
    env: MLPEnv | None = None,
    starters: ServiceStarters | None = None,
) -> None:
    """Do what the role of this process in the MLP launch environment asks for.

    A dispatcher and a data worker serve, and end the process when the first worker is gone. A
    worker waits for the data service if it reads from it. Nothing is done elsewhere.

    Args:
        dispatcher_role: Role of the dispatcher of the data service.
        dsworker_role: Role of data workers.
        worker_role: Role of workers.
        ps_role: Role of parameter servers.
        settings: Settings of the process, such as `RunnerSettings`.
        task: Key of the task whose data is read, for data workers.
        env: The environment; None takes that of the process.
        starters: Starts the processes of the data service.

    Raises:
        InvalidArgumentError: A data worker has no task, or its address needs keys.
    """
    mlp_roles.mlp_pass(
        MLPEnv() if env is None else env,
        (dispatcher_role, dsworker_role, worker_role, ps_role),
        settings,
        task,
        starters or ServiceStarters(),
        EXTRA_DSWORKERS,
    )
