"""`RunnerConfig`: the options of a process of a job, with its place in the cluster."""

import contextlib
import enum
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from monolith.checkpoint.state import MONOLITH_STATE_FILE
from monolith.checkpoint.storage import exists, make_folder
from monolith.cluster.data_service import ServiceOptions, ServiceSource
from monolith.cluster.zmq.curve_keys import read_keys
from monolith.environment import mpi_rank
from monolith.errors import DeadlineExceededError, InvalidArgumentError
from monolith.native_training.env_utils import generate_psm_from_uuid
from monolith.native_training.jobs.mlp_roles import RunnerSettings
from monolith.native_training.jobs.mpi_abort import add_mpi_exception_hook
from monolith.native_training.jobs.training_config import (
    SERVING,
    DistributedCpuTrainingConfig,
    does,
    refused,
)
from monolith.native_training.mlp_utils import mlp_pass
from monolith.native_training.saver.restore_override import (
    RestoreSettings,
    copy_checkpoint_state,
)
from monolith.native_training.service_discovery import (
    ConsulServiceDiscovery,
    MLPServiceDiscovery,
    ServiceDiscovery,
    ServiceDiscoveryType,
    TfConfigServiceDiscovery,
    ZKServiceDiscovery,
)
from monolith.native_training.util.net import AddressFamily

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_INPUT = "a source that the config describes; read the data in the input function of the task"
_INSIGHT = "deep insight, which has no public service"
_SAME = "changes nothing, as in the reference system"
_RPC = "changes nothing: the wire has threads of its own"
_KAFKA = "copied to the settings, where an input function reads it"
_POLL_SECONDS = 30.0


class ContainerType(enum.Enum):
    """How a scheduler runs a process."""

    DOCKER = 1
    NATIVE = 2


@dataclass
class RunnerConfig(DistributedCpuTrainingConfig):
    """Hold the options of a process of a job, with the names and defaults of the reference system.

    `docs/reference/runner.md` says what each field does. Making a config has effects, as in the
    reference system: a dispatcher and a data worker of the MLP launch environment serve and end the
    process, and with `restore_dir` the chief prepares `model_dir`, for which the others wait.

    Args:
        settings: Settings of the command line, such as `RunnerSettings`. Attributes with the name
            of a field set the field, unless it was given here.
        poll_seconds: Seconds between two looks for the state that the chief writes.

    Raises:
        AssertionError: `zk_watch_address_family` is none.
        DeadlineExceededError: The chief did not prepare `model_dir` in `chief_timeout_secs`.
    """

    use_dataservice: bool | None = does(
        None, "whether batches come from data workers; settings: `dataset_use_dataservice`"
    )
    num_extra_dsworker_on_gpu_worker: int = does(
        0, "data workers in the process of each worker of the MLP environment"
    )
    task: str | None = does(None, "key of the task, of which a data worker reads the data")
    tf_config: str | None = does(None, "JSON of the cluster, for PRIMUS")
    deep_insight_name: str | None = does(None, "name of the job in ZooKeeper")
    discovery_type: ServiceDiscoveryType = does(  # noqa: RUF009
        ServiceDiscoveryType.CONSUL, "how processes find each other"
    )
    zk_server: str | None = does(None, "servers of ZooKeeper; None for those of `zk_utils`")
    zk_watch_address_family: str = does("ipv4", "'ipv4' or 'ipv6'; changes nothing without serving")
    is_local: bool = does(False, "whether the run is in this process alone")
    enable_fid_dedup: bool = does(False, _SAME)
    bzid: str | None = refused(None, SERVING)
    ps_replica_num: int | None = does(None, _SAME)
    tf_grpc_worker_cache_threads: int = does(16, _RPC)
    monolith_grpc_worker_service_handler_multiplier: float = does(1.0, _RPC)
    params_override: str | None = does(
        None, "JSON object, dotted name of a parameter of the task -> value; of an `Estimator`"
    )
    base_name: str | None = refused(None, SERVING)
    data_type: str | None = refused(None, _INPUT)
    feature_list: str | None = refused(None, _INPUT)
    lagrangex_header: bool = refused(False, _INPUT)
    sort_id: bool = refused(True, _INPUT)
    kafka_dump: bool = refused(False, _INPUT)
    kafka_dump_prefix: bool = refused(False, _INPUT)
    restore_dir: str | None = does(
        None, "folder of another job, whose checkpoint a new `model_dir` starts from"
    )
    restore_ckpt: str | None = does(None, "name of the checkpoint to start from")
    deep_insight_target: str | None = refused(None, _INSIGHT)
    deep_insight_sample_ratio: float | None = refused(None, _INSIGHT)
    unified_serving: bool = refused(False, SERVING)
    use_estimator: bool = does(False, _SAME)
    kafka_topics: str | None = does(None, _KAFKA)
    kafka_group_id: str | None = does(None, _KAFKA)
    kafka_servers: str | None = does(None, _KAFKA)
    input_path: str | None = refused(None, _INPUT)
    is_hourly: bool = refused(False, _INPUT)
    wildcard: str | None = refused(None, _INPUT)
    start_date: str | None = refused(None, _INPUT)
    end_date: str | None = refused(None, _INPUT)
    start_hour: int | None = refused(None, _INPUT)
    end_hour: int | None = refused(None, _INPUT)
    enable_dynamic_sharding: bool = refused(False, _INPUT)
    max_task_num_per_worker: int = refused(1, _INPUT)
    disable_native_metrics: bool = does(
        True, "whether the heads of a `MonolithModel` have no metrics of their own"
    )
    _given: ClassVar[frozenset[str]] = frozenset()
    settings: InitVar[Any] = None
    poll_seconds: InitVar[float] = _POLL_SECONDS

    def __new__(cls, *args: Any, **given: Any) -> "Self":
        """Note which fields the caller gives: settings leave them alone."""
        config = super().__new__(cls)
        names = [each.name for each in fields(cls)]
        given_names = frozenset([*names[: len(args)], *given])
        config.__dict__["_given"] = given_names
        return config

    def __post_init__(self, settings: Any, poll_seconds: float) -> None:
        self.resolved = RunnerSettings() if settings is None else settings
        """The settings that were passed, completed by this config."""
        task = self.task if "task" in self._given else getattr(settings, "task", self.task)
        self._note_data_service()
        mlp_pass(settings=self.resolved, task=task)
        add_mpi_exception_hook()
        if settings is not None:
            self._update(settings)
        if self._is_partial_worker() and (self.index is None or self.index <= 0):
            self.index = mpi_rank() or 0
        for name in ("kafka_topics", "kafka_group_id", "kafka_servers"):
            if getattr(self, name) is not None:
                setattr(self.resolved, name, getattr(self, name))
        families = (AddressFamily.IPV4, AddressFamily.IPV6)
        assert self.zk_watch_address_family in families, (
            f"[RunnerConfig] expected zk_watch_address_family as one of {families}, got "
            f"{self.zk_watch_address_family!r}"
        )
        self._settle_restore(poll_seconds)

    def _note_data_service(self) -> None:
        """Write what this config says about the data service into settings that do not say it."""
        settings = self.resolved
        if self.use_dataservice and not getattr(settings, "dataset_use_dataservice", False):
            settings.dataset_use_dataservice = True
        name = "num_extra_dsworker_on_gpu_worker"
        if getattr(self, name) and not getattr(settings, name, 0):
            setattr(settings, name, getattr(self, name))

    def _update(self, settings: Any) -> None:
        """Take the fields over that settings have and the caller has not given."""
        try:
            for each in fields(self):
                value = getattr(settings, each.name, None)
                if each.name == "use_dataservice" and value is None:
                    value = getattr(settings, "dataset_use_dataservice", None) or None
                if value is None or each.name in self._given:
                    continue
                if isinstance(each.default, enum.Enum) and isinstance(value, str):
                    value = type(each.default)[value.upper()]
                setattr(self, each.name, value)
        except Exception:
            _log.exception("update RunnerConfig failed")

    def _is_partial_worker(self) -> bool:
        is_partial = self.enable_gpu_training and self.enable_partial_sync_training
        return is_partial and self.server_type == "worker"

    def _settle_restore(self, poll_seconds: float) -> None:
        """Agree on the checkpoint with the settings, and let a new folder start from it."""
        settings = self.resolved
        if getattr(settings, "restore_ckpt", None) is None:
            settings.restore_ckpt = self.restore_ckpt
        self.restore_ckpt = settings.restore_ckpt
        if getattr(settings, "mode", None) is None:
            settings.mode = self.mode
        if self.restore_dir is None:
            return
        is_chief = self.is_local or (self.server_type == "worker" and self.index == 0)
        if is_chief:
            self._copy_ckpt_file()
        else:
            self._await_state(poll_seconds)

    def _copy_ckpt_file(self) -> None:
        """Let `model_dir` start from a checkpoint of `restore_dir`, and tell the others."""
        make_folder(self.model_dir)
        copy_checkpoint_state(
            self.model_dir, RestoreSettings(self.restore_ckpt, self.restore_dir, self.mode)
        )

    def _await_state(self, poll_seconds: float) -> None:
        path = f"{self.model_dir.rstrip('/')}/{MONOLITH_STATE_FILE}"
        start = time.monotonic()
        while not exists(path):
            seconds = time.monotonic() - start
            if seconds > self.chief_timeout_secs:
                raise DeadlineExceededError(
                    f"[RunnerConfig] expected the chief to write {path} within "
                    f"{self.chief_timeout_secs} seconds, got none ({self.server_type} "
                    f"{self.index}); start worker 0 with the same model_dir and restore_dir"
                )
            _log.info("waiting for the chief to write %s, since %.0f s", path, seconds)
            time.sleep(poll_seconds)

    @property
    def data_service_dispatcher(self) -> str | None:
        """Address of the dispatcher from which a worker reads; None for its own input function."""
        if not self.use_dataservice:
            return None
        return getattr(self.resolved, "data_service_dispatcher", None) or None

    def data_source(self) -> ServiceSource | None:
        """Return the data service from which workers read; None for their input functions."""
        address = self.data_service_dispatcher
        if address is None:
            return None
        keys = getattr(self.resolved, "data_service_keys", None)
        return ServiceSource(ServiceOptions(address, None if keys is None else read_keys(keys)))

    def check(self) -> None:
        """Refuse values that need a part which is not here, or that contradict each other.

        Raises:
            NotImplementedError: A field has a value that needs such a part.
            ValueError: Both paces of one kind of checkpoints are set.
            InvalidArgumentError: The data service has no dispatcher.
        """
        super().check()
        is_reader = self.use_dataservice and self.server_type == "worker"
        if is_reader and self.data_service_dispatcher is None:
            raise InvalidArgumentError(
                "[RunnerConfig] expected the address of a dispatcher with use_dataservice=True, "
                "got none; set data_service_dispatcher of the settings, or start the job by MLP "
                "with a role dispatcher"
            )


def get_discovery(runner_conf: RunnerConfig, psm: str | None = None) -> ServiceDiscovery | None:
    """Return the discovery of a config; None for a local run. With PRIMUS, set its role and number.

    Args:
        runner_conf: The config.
        psm: Name of the job in Consul; None takes that of its `uuid`.

    Raises:
        InvalidArgumentError: The config lacks what the discovery needs.
    """
    conf = runner_conf
    if conf.is_local:
        return None
    kind = conf.discovery_type
    if kind == ServiceDiscoveryType.PRIMUS:
        if not conf.tf_config:
            raise InvalidArgumentError(
                "[get_discovery] expected tf_config as JSON for PRIMUS, got none"
            )
        primus = TfConfigServiceDiscovery(json.loads(conf.tf_config))
        conf.server_type, conf.index = primus.server_type, primus.index
        return primus
    if kind == ServiceDiscoveryType.CONSUL:
        name = psm or generate_psm_from_uuid(conf.uuid)
        return ConsulServiceDiscovery(_named("uuid", name, "CONSUL"))
    if kind == ServiceDiscoveryType.MLP:
        return MLPServiceDiscovery()
    name = _named("deep_insight_name", conf.deep_insight_name, "ZK")
    return ZKServiceDiscovery(name, conf.zk_server)


def _named(field_name: str, value: str | None, kind: str) -> str:
    if not value:
        raise InvalidArgumentError(
            f"[get_discovery] expected {field_name} as the name of the job for {kind}, got "
            f"{value!r}"
        )
    return value


@contextlib.contextmanager
def monolith_discovery(runner_conf: RunnerConfig) -> Iterator[ServiceDiscovery | None]:
    """Give the discovery of a config until the block ends; None for a local run."""
    if runner_conf.is_local:
        yield None
        return
    psm = generate_psm_from_uuid(runner_conf.uuid)
    _log.info("discovery of the job %s: begin", psm)
    discovery = get_discovery(runner_conf, psm)
    try:
        yield discovery
    finally:
        if discovery is not None:
            discovery.close()
        _log.info("discovery of the job %s: end", psm)
