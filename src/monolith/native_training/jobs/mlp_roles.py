"""`mlp_pass`: what a process of the MLP launch environment does before it trains."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from monolith.cluster.data_service import DataWorkerProcess, DispatcherProcess, ListenOptions
from monolith.cluster.discovery.mlp_env import MLPEnv
from monolith.cluster.zmq.curve_keys import read_keys
from monolith.data import Batch
from monolith.errors import InvalidArgumentError, OpError
from monolith.native_training.tasks import task_context
from monolith.native_training.tasks.registry import get_params
from monolith.native_training.tasks.task_context import NativeTaskContext
from monolith.train.roles.served_data import training_data

_log = logging.getLogger(__name__)


@dataclass
class RunnerSettings:
    """Settings of a process that its command line gives; a `RunnerConfig` reads and completes them.

    Any object with such attributes does; further attributes with the names of fields of a
    `RunnerConfig` set these fields.

    Args:
        restore_ckpt: Checkpoint to start from; comes before that of the config.
        mode: Mode of the task; None takes that of the config.
        kafka_topics: Topics, which the config sets.
        kafka_group_id: Group of consumers, which the config sets.
        kafka_servers: Servers of Kafka, which the config sets.
        dataset_use_dataservice: Whether data workers read the data.
        data_service_dispatcher: Address of the dispatcher; `mlp_pass` sets it.
        num_extra_dsworker_on_gpu_worker: Number of data workers in the process of each worker.
        data_service_keys: File of CURVE keys, for a data service of several machines.
        data_service_insecure: Whether every machine may read the data without keys.
    """

    restore_ckpt: str | None = None
    mode: str | None = None
    kafka_topics: str | None = None
    kafka_group_id: str | None = None
    kafka_servers: str | None = None
    dataset_use_dataservice: bool = False
    data_service_dispatcher: str = ""
    num_extra_dsworker_on_gpu_worker: int = 0
    data_service_keys: str | None = None
    data_service_insecure: bool = False


@dataclass(frozen=True)
class ServiceStarters:
    """What starts the processes of a data service; tests replace it.

    Args:
        dispatcher: (options, number of readers) -> dispatcher.
        data_worker: (source of the data, address of the dispatcher, options, facts) -> data worker.
    """

    dispatcher: Callable[[ListenOptions, int], Any] = DispatcherProcess
    data_worker: Callable[..., Any] = DataWorkerProcess


class MlpRole:
    """The role of a process in the MLP launch environment.

    Args:
        env: The environment.
        settings: Settings of the process; None means those without a data service.
        task: Key of the task whose data is read, for data workers.
        starters: Starts the processes of the data service.
        extra_workers: Gets the data workers in the process of a worker.
    """

    def __init__(
        self,
        env: MLPEnv,
        settings: Any,
        task: str | None,
        starters: ServiceStarters,
        extra_workers: list[Any],
    ) -> None:
        self._env, self._settings, self._task = env, settings, task
        self._starters, self._extra_workers = starters, extra_workers

    def _setting(self, name: str, default: Any) -> Any:
        return getattr(self._settings, name, default)

    @property
    def _num_extra(self) -> int:
        return int(self._setting("num_extra_dsworker_on_gpu_worker", 0) or 0)

    def run_dispatcher(self, dsworker_role: str, worker_role: str) -> None:
        """Serve as the dispatcher until the first worker is gone; then end the process."""
        env = self._env
        extra = self._num_extra * env.num_replicas(worker_role)
        num_readers = max(1, env.num_replicas(dsworker_role) + extra)
        process = self._starters.dispatcher(self._listen(env.port), num_readers)
        _log.info("dispatcher of the data service at %s", process.address)
        env.join(worker_role)

    def run_data_worker(self, dispatcher_role: str, worker_role: str) -> None:
        """Serve data until the first worker is gone; then end the process."""
        env = self._env
        env.wait(dispatcher_role, use_ssh=False)
        process = self._start_data_worker(dispatcher_role, env.port)
        _log.info("data worker %d at %s", env.index, process.address)
        self._start_profiler()
        env.join(worker_role)

    def prepare_worker(self, dispatcher_role: str, dsworker_role: str) -> None:
        """Wait for the data service if the worker reads from it, and start more data workers."""
        env = self._env
        if self._setting("dataset_use_dataservice", False):
            env.wait(dispatcher_role, use_ssh=False)
            for index in range(env.num_replicas(dsworker_role)):
                env.wait(dsworker_role, index, use_ssh=False)
            self._settings.data_service_dispatcher = env.dispatcher_target(dispatcher_role)
            first = env.port - env.index + env.mpi_size + env.index * self._num_extra
            for number in range(self._num_extra):
                process = self._start_data_worker(dispatcher_role, first + number)
                self._extra_workers.append(process)
        self.say_place()

    def say_place(self) -> None:
        """Log the address of this process and the numbers of all roles."""
        env = self._env
        _log.info(
            "%s %d at %s:%d; roles: %s",
            env.role,
            env.index,
            env.host,
            env.port,
            dict(env.all_roles),
        )

    def _start_profiler(self) -> None:
        """Start the profiler, without which the role does its work, too."""
        options = self._listen(0)
        try:
            self._env.start_profiler(keys=options.keys, is_insecure=options.is_insecure)
        except (OpError, ValueError) as error:
            _log.warning("there is no profiler: %s", error)

    def _listen(self, port: int) -> ListenOptions:
        host = self._env.host
        bare = f"[{host}]" if ":" in host and not host.startswith("[") else host
        keys = self._setting("data_service_keys", None)
        return ListenOptions(
            f"tcp://{bare}:{port}",
            None if keys is None else read_keys(keys),
            bool(self._setting("data_service_insecure", False)),
        )

    def _start_data_worker(self, dispatcher_role: str, port: int) -> Any:
        address = self._env.dispatcher_target(dispatcher_role)
        if self._task is None:
            raise InvalidArgumentError(
                "[mlp_pass] expected the key of a task, whose data this data worker reads, got "
                "none; set RunnerConfig.task"
            )
        return self._starters.data_worker(
            partial(data_of_task, self._task), address, self._listen(port), facts=[self._task]
        )


def data_of_task(key: str, num_readers: int = 1) -> Iterable[Batch]:
    """Return the training data of the task with a key of the registry.

    Args:
        key: Key of the task.
        num_readers: Number of data workers for which the input function divides the data.
    """
    with task_context.with_ctx(NativeTaskContext(num_workers=num_readers, server_type="worker")):
        return training_data(get_params(key).instantiate())


def mlp_pass(
    env: MLPEnv,
    roles: tuple[str, str, str, str],
    settings: Any,
    task: str | None,
    starters: ServiceStarters,
    extra_workers: list[Any],
) -> None:
    """Do what the role of this process asks for; see `native_training.mlp_utils.mlp_pass`."""
    if not env.available:
        return
    dispatcher_role, dsworker_role, worker_role, _ = (role.upper() for role in roles)
    role = MlpRole(env, settings, task, starters, extra_workers)
    if env.role == dispatcher_role:
        role.run_dispatcher(dsworker_role, worker_role)
    elif env.role == dsworker_role:
        role.run_data_worker(dispatcher_role, worker_role)
    elif env.role == worker_role:
        role.prepare_worker(dispatcher_role, dsworker_role)
    else:
        role.say_place()
