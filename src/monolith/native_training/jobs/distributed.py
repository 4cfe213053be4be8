"""`distributed_train`: one process of a job, a server or a worker."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from monolith.checkpoint import find
from monolith.cluster.discovery import ServiceDiscovery
from monolith.cluster.job.shared_state import ValuesSharedState
from monolith.cluster.remote_servers import RemoteServers
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.cluster.zmq.server_process import ServerOptions
from monolith.control import ControlOptions
from monolith.control.grpc_extra import load_grpc
from monolith.environment import app_master_address
from monolith.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    OpError,
    UnavailableError,
)
from monolith.native_training import yarn_runtime
from monolith.native_training.cluster_manager import WORKER_JOB_NAME, get_training_cluster
from monolith.native_training.hooks.current_run import CurrentRunHook
from monolith.native_training.jobs.cpu_training import CpuTraining
from monolith.native_training.jobs.ps_role import run_server
from monolith.native_training.jobs.started_servers import NodeAliveCheckerError, StartedServers
from monolith.native_training.jobs.training_config import DistributedCpuTrainingConfig
from monolith.native_training.ps_benchmark import BenchmarkConfig, PsBenchMarkTask
from monolith.native_training.sync_hooks import TrainingHooksHelper
from monolith.native_training.tasks import task_context
from monolith.native_training.tasks.native_task import NativeTask
from monolith.native_training.util.net import concat_ip_and_port, get_local_ip
from monolith.native_training.util.run_state import share, use_servers
from monolith.observe.metrics import MetricsSink, NullSink
from monolith.train.driver import MAX_RECOVERIES, PREEMPTION_ERRORS, Hook
from monolith.train.roles.worker import JobReport, WorkerOptions, run_worker
from monolith.train.run_state import seed_all
from monolith.train.settings import WAIT, TrainSettings
from monolith.train.trainer import Trainer

_log = logging.getLogger(__name__)

RETRIED: tuple[type[OpError], ...] = (DeadlineExceededError, UnavailableError)
"""Errors after which a worker looks for the cluster again and trains on."""

_DONE = ("end of data", "steps", "early stop", "stopped")  # and not by a signal
_NEVER_STEPS = 100_000_000
_SHUTDOWN_SECONDS = 20.0


@dataclass(frozen=True)
class ProcessOptions:
    """How a process of a job runs, apart from its config.

    Args:
        benchmark_seconds: Seconds of the measurement of servers.
        shutdown: Lets the servers of the job end.
        shutdown_seconds: Seconds that the chief gives `shutdown`; then it ends without it.
        keys: CURVE keys of the job.
        bind: Address at which a server listens.
        metrics: Sink of the measurements of a worker.
        sleep: Waits for some seconds between two tries.
        control: Where the controller of the chief listens; None takes the defaults.
    """

    benchmark_seconds: float
    shutdown: Callable[[StartedServers], object]
    shutdown_seconds: float = _SHUTDOWN_SECONDS
    keys: CurveKeys | None = None
    bind: str = "tcp://127.0.0.1:0"
    metrics: MetricsSink | None = None
    sleep: Callable[[float], None] = time.sleep
    control: ControlOptions | None = None


def distributed_train(
    config: DistributedCpuTrainingConfig,
    discovery: ServiceDiscovery,
    params: Any,
    user_hooks: Sequence[Hook],
    options: ProcessOptions,
) -> JobReport | None:
    """Run one process of a job; see `native_training.cpu_training.distributed_train`."""
    if (place := discovery.place) is not None:
        config.server_type, config.index = place.name, place.index
        options = replace(options, bind=f"tcp://{place.address}")
    check_process(config)
    servers = StartedServers(config, discovery, options.keys)
    if config.server_type == "ps":
        ps = ServerOptions(config.index, servers.num_started, options.bind, options.keys)
        run_server(servers, discovery, params, ps)
        return None
    return _Worker(servers, discovery, params, user_hooks, options).run()


def check_process(config: DistributedCpuTrainingConfig) -> None:
    """Refuse a config that describes no process of a job.

    Raises:
        NotImplementedError: A field needs a part that is not here.
        ValueError: A field is missing or out of range.
    """
    for field, name in (("index", "Index"), ("num_ps", "Num ps"), ("num_workers", "Num workers")):
        if getattr(config, field) is None:
            raise ValueError(f"{name} can't be none.")
    if config.server_type not in ("ps", "worker"):
        raise ValueError(f"Unknown server type. type: {config.server_type}")
    if not config.model_dir:
        raise ValueError("model dir can't be empty.")
    config.check()
    if config.enable_sync_training:
        raise ValueError(
            "[distributed_train] expected enable_sync_training=False, got True; train on ranks by "
            "distributed_sync_train"
        )
    if config.num_ps < 1:
        raise ValueError(
            f"[distributed_train] expected num_ps >= 1, got {config.num_ps}; train without servers "
            "by local_train"
        )
    if config.mode != "train":
        raise NotImplementedError(
            f"[distributed_train] expected mode='train', got {config.mode!r}; evaluate a "
            "checkpoint by local_train or an Estimator"
        )


class _Worker:
    """A worker of a job, over all its tries."""

    def __init__(
        self,
        servers: StartedServers,
        discovery: ServiceDiscovery,
        params: Any,
        user_hooks: Sequence[Hook],
        options: ProcessOptions,
    ) -> None:
        self._servers, self._config = servers, servers.config
        self._discovery, self._params = discovery, params
        self._user_hooks, self._options = tuple(user_hooks), options
        own = concat_ip_and_port(get_local_ip(), 0)  # nobody connects to a worker
        self._address = own if discovery.place is None else discovery.place.address
        self._metrics = options.metrics or NullSink()

    @property
    def _is_chief(self) -> bool:
        return self._config.index == 0

    def run(self) -> JobReport:
        """Train; tell the application master, if there is one, how the chief has ended.

        After a signal the application has neither succeeded nor failed: it may be started again.
        """
        if not (self._is_chief and app_master_address()):
            return self._run()
        load_grpc()  # a missing package is an error before the training, not after it
        try:
            report = self._run()
        except BaseException as error:
            yarn_runtime.maybe_kill_application(str(error) or type(error).__name__)
            raise
        if report.result.ended in _DONE:
            yarn_runtime.maybe_finish_application()
        else:
            _log.warning(
                "the application master hears of no success: the job was %s", report.result.ended
            )
        return report

    def _run(self) -> JobReport:
        config = self._config
        self._discovery.hold(WORKER_JOB_NAME, config.index)
        self._discovery.register(WORKER_JOB_NAME, config.index, self._address)
        _log.info("Started worker %d at %s.", config.index, self._address)
        try:
            report = self._train_with_retries()
        finally:
            if self._is_chief:
                self._end_servers()
            self._discovery.deregister(WORKER_JOB_NAME, config.index, self._address)
        _log.info("Finished worker %d.", config.index)
        return report

    def _train_with_retries(self) -> JobReport:
        config = self._config
        max_retries = config.max_retry_times or (6 if config.partial_recovery else 0)
        num_retries = num_aborts = 0
        numbers, away_since = self._find_servers(), math.inf
        while True:
            cluster = self._servers.addresses(numbers)
            try:
                return self._train(numbers)
            except (*RETRIED, *PREEMPTION_ERRORS) as error:
                is_away = isinstance(error, NodeAliveCheckerError)
                away_since = min(away_since, time.monotonic()) if is_away else math.inf
                if time.monotonic() - away_since > config.session_creation_timeout_secs:
                    raise
                _log.warning("worker %d tries again after: %s", config.index, error)
                tags = {"model_name": config.model_name, "worker_index": str(config.index)}
                self._metrics.count("worker_failover_cnt", 1, tags)
                self._options.sleep(config.retry_wait_in_secs)
                numbers = self._find_servers()
                num_aborts += isinstance(error, PREEMPTION_ERRORS)
                num_retries += self._servers.addresses(numbers) != cluster
                if num_retries > max_retries or num_aborts > MAX_RECOVERIES:
                    raise

    def _find_servers(self) -> list[int]:
        """Return the numbers of the job's servers, which the chief chooses if there are more."""
        config, servers = self._config, self._servers
        has_extra = config.num_extra_ps > 0
        numbers = servers.places()
        if numbers is None or servers.num_started == config.num_ps:
            cluster, _ = get_training_cluster(
                self._discovery,
                self._address,
                config.index,
                config.num_redundant_ps,
                config.num_ps + config.num_extra_ps,
                config.num_workers,
                config.model_dir,
                config.uuid,
                config.model_name,
                config.cluster_type,
                timeout_seconds=config.session_creation_timeout_secs,
                sink=self._metrics,
                prepare=servers.settle,
            )
            if has_extra:
                self._benchmark(cluster["ps"])
            numbers = servers.places()
        if numbers is None:
            raise UnavailableError(
                f"[distributed_train] expected the chief to choose {config.num_ps} servers, got no "
                f"list of them (worker {config.index}); all processes need the same model_dir"
            )
        return numbers

    def _benchmark(self, addresses: list[str]) -> None:
        """Measure servers; the chief gives the fastest ones their places."""
        config, servers = self._config, self._servers
        params = PsBenchMarkTask.params()
        params.bm_config = BenchmarkConfig(
            addresses,
            config.num_ps,
            config.num_workers,
            config.index,
            self._options.benchmark_seconds,
            select=servers.settle,
        )
        try:
            connected = servers.connect(servers.numbers_of(addresses))
        except FailedPreconditionError:  # they have their places by now
            if servers.places() is None:
                raise
            return
        with connected, Trainer(params.instantiate(), TrainSettings()) as trainer:
            use_servers(trainer.run, connected)
            share(trainer.run, ValuesSharedState(connected))
            trainer.fit()

    def _train(self, numbers: list[int]) -> JobReport:
        config = self._config
        self._params.mode = config.mode
        self._set_dense_only_saves()
        settings = settings_of(config)
        seed_all(settings.seed)  # a task may make its dense model in its constructor
        task = self._params.instantiate()
        if not isinstance(task, NativeTask):
            raise TypeError(
                f"[distributed_train] expected parameters of a NativeTask, got those of a "
                f"{type(task).__name__}; train other tasks by `monolith launch`"
            )
        training = CpuTraining(config, task)
        barrier = float(task.p.train.max_pending_seconds_for_barrier)
        options = WorkerOptions(
            ready_seconds=config.session_creation_timeout_secs,
            hold_seconds=max(barrier, 0.1),
            end_seconds=config.chief_timeout_secs,
            control=self._options.control or ControlOptions(),
        )
        checkpoint = find(config.model_dir) if self._is_chief else None
        with (
            task_context.with_ctx(training.context),
            self._servers.connect(numbers) as connected,
        ):
            return run_worker(
                task,
                settings,
                connected,
                source=config.data_source(),
                checkpoint=checkpoint,
                metrics=self._options.metrics,
                options=options,
                began=lambda trainer: self._begin(trainer, connected),
                ends_servers=False,
            )

    def _begin(self, trainer: Trainer, connected: RemoteServers) -> None:
        """Let the run see its job, and add the hooks of the job."""
        config, job = self._config, trainer.job
        assert job is not None
        share(trainer.run, job)
        use_servers(trainer.run, connected)
        sync = TrainingHooksHelper(
            config.num_workers > 1,
            config.num_workers,
            config.index,
            config.chief_timeout_secs,
            shared=job,
        )
        of_chief = sync.training_chief_hooks if self._is_chief else ()
        of_all = [*self._user_hooks, CurrentRunHook(), *sync.training_hooks]
        trainer.hooks = (*of_chief, *of_all)

    def _set_dense_only_saves(self) -> None:
        train, names = self._params.train, ("secs", "steps")
        fields = [f"dense_only_save_checkpoints_{name}" for name in names]
        if all(train[field] is None for field in fields):
            for field in fields:
                train[field] = getattr(self._config, field)

    def _end_servers(self) -> None:
        """Let the servers end; a shutdown that does not return is left alone."""
        seconds = self._options.shutdown_seconds
        thread = threading.Thread(target=self._shutdown, name="monolith-shutdown", daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            _log.warning("the shutdown of the servers has not ended within %g s", seconds)

    def _shutdown(self) -> None:
        with contextlib.suppress(OpError):
            self._options.shutdown(self._servers)


def settings_of(config: DistributedCpuTrainingConfig) -> TrainSettings:
    """Return the options of the trainer that a config asks for."""
    every, seconds = config.save_checkpoints_steps, config.save_checkpoints_secs
    if every is None:
        every = 0 if seconds is not None else _NEVER_STEPS
    is_late = config.enable_embedding_postpush or config.enable_variable_postpush
    return TrainSettings(
        prefetch=config.embedding_prefetch_capacity,
        push=int(is_late),
        log_every=config.log_step_count_steps * config.num_workers,
        checkpoint_dir=config.model_dir,
        save_every=every,
        save_seconds=seconds,
        busy_save=WAIT,
        keep=config.checkpoints_max_to_keep,
    )
