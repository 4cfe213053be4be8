"""Define `RunConfig`: the options of an `Estimator`, and what some of their values need."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

_SERVERS = "parameter servers as processes of their own"
_SERVING = "serving that follows the training"
_NAMES = "a restore of dense parameters by other names"
_KAFKA = "a Kafka client; read the topic in the input function of the task"

NEEDS: Mapping[str, str] = MappingProxyType(
    {
        "num_workers": "several processes",
        "partial_recovery": _SERVERS,
        "enable_model_dump": "files of exported models",
        "bzid": _SERVING,
        "base_name": _SERVING,
        "enable_parameter_sync": _SERVING,
        "enable_local_profiling": "a folder for traces; give a ProfilerHook to train",
        "clear_nn": _NAMES,
        "continue_training": _NAMES,
        "reload_alias_map": _NAMES,
        "enable_alias_map_auto_gen": _NAMES,
        "kafka_topics": _KAFKA,
        "kafka_group_id": _KAFKA,
        "kafka_servers": _KAFKA,
    }
)
"""Fields of `RunConfig` whose other values are refused -> what these values need."""


@dataclass
class RunConfig:
    """Hold the options of an `Estimator`, with the names and defaults of the reference system.

    Fields about other processes (timeouts, retries, `ps_replica_num`), about serving
    (`warmup_file`, `max_rpc_deadline_millis`), about summaries (`save_summary_steps`) and about the
    layout of tables (`use_native_multi_hash_table`) change nothing in local mode.

    Args:
        is_local: Whether the run is in this process; a `RunnerConfig` is for jobs.
        num_ps: Number of servers, which are objects of the process; 0 for none.
        model_dir: Folder for checkpoints; a temporary folder if empty.
        restore_dir: Folder of another job, whose checkpoint a new `model_dir` starts from.
        restore_ckpt: Name of the checkpoint to go on from; the newest if None.
        save_checkpoints_secs: Seconds between two checkpoints; replaces that of the parameters, as
            the next three do.
        save_checkpoints_steps: Steps between two checkpoints.
        dense_only_save_checkpoints_secs: Seconds between two checkpoints without tables.
        dense_only_save_checkpoints_steps: Steps between two checkpoints without tables.
        checkpoints_max_to_keep: Number of newest checkpoints to keep.
        disable_native_metrics: Whether the heads of a `MonolithModel` have no metrics of their own.
        enable_fused_layout: Whether lookups of a `MonolithModel` return layouts.
        log_step_count_steps: Steps between two reports of figures.
        params_override: JSON object, dotted name of a parameter -> value.
    """

    is_local: bool = False
    num_ps: int = 0
    num_workers: int = 1
    chief_timeout_secs: int = 1800
    operation_timeout_in_ms: int = -1
    session_creation_timeout_secs: int = 7200
    enable_fused_layout: bool = False
    enable_model_dump: bool = False
    partial_recovery: bool = False
    max_retry_times: int = 6
    retry_wait_in_secs: int = 5
    bzid: str | None = None
    base_name: str | None = None
    ps_replica_num: int | None = None
    enable_parameter_sync: bool = False
    model_dir: str = ""
    restore_dir: str | None = None
    restore_ckpt: str | None = None
    save_checkpoints_secs: float | None = None
    save_checkpoints_steps: int | None = None
    max_rpc_deadline_millis: int = 30000
    dense_only_save_checkpoints_secs: float | None = None
    dense_only_save_checkpoints_steps: int | None = None
    checkpoints_max_to_keep: int = 10
    warmup_file: str = "./warmup_file"
    enable_local_profiling: bool = False
    use_native_multi_hash_table: bool | None = None
    clear_nn: bool = False
    continue_training: bool = False
    reload_alias_map: dict[str, str] | None = None
    enable_alias_map_auto_gen: bool | None = None
    kafka_topics: str | None = None
    kafka_group_id: str | None = None
    kafka_servers: str | None = None
    disable_native_metrics: bool = True
    save_summary_steps: int = 100
    log_step_count_steps: int = 100
    params_override: str | None = None

    def check_local(self) -> None:
        """Refuse values that need a part which is not here.

        Raises:
            NotImplementedError: There is such a value.
        """
        if not self.is_local:
            raise NotImplementedError(
                "[Estimator] expected conf.is_local=True, got False; give a RunnerConfig for a job "
                "of several processes"
            )
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if field.name in NEEDS and value != field.default:
                raise NotImplementedError(
                    f"[Estimator] expected conf.{field.name}={field.default!r}, got {value!r}; "
                    f"another value needs {NEEDS[field.name]}"
                )
