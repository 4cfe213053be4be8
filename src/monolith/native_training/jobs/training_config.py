"""Define the configs of jobs: `CpuTrainingConfig` and `DistributedCpuTrainingConfig`."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from monolith.cluster.data_service import ServiceSource

_BOTH = "servers for tables, and ranks for dense parameters, in one job"
_GPU = "tables on an accelerator"
SERVING = "serving that follows the training"
_NAMES = "a restore of dense parameters by other names"
_ITEMS = "a cache of items, whose model the reference system has not published"
_TIDE = "saves by hours of the day; use the hooks of native_training.session_run_hooks"
_PROFILER = "a profiler by steps of the config; give a ProfilerHook to the run"
_FOUNTAIN = "the data service fountain, which has no public client"
_SERVICE = "the dispatcher of a data service, which a RunnerConfig knows"
_EXACT = "changes nothing: slots count occurrences exactly"
_LAYOUT = "changes nothing: the layout of tables is the same"


def does(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


def refused(default: Any, needs: str) -> Any:
    return field(default=default, metadata={"needs": needs})


@dataclass
class CpuTrainingConfig:
    """Hold the options of a job, with the names and defaults of the reference system.

    `docs/reference/training_config.md` says what each field does. A value that needs a part which
    is not here is refused by `check` when a run begins.
    """

    server_type: str = does("worker", "role of this process: 'ps' or 'worker'")
    index: int = does(0, "number of this process in its role; worker 0 is the chief")
    num_ps: int = does(0, "number of servers; 0 for tables in the process of the worker")
    num_workers: int = does(1, "number of workers, the chief included")
    model_name: str = does(
        "", "model of records and counters; empty takes the name of the task for deep insight"
    )
    filter_capacity: int = does(300000000, _EXACT)
    filter_split_num: int = does(7, _EXACT)
    filter_type: str = refused("sliding_hash_filter", "a filter of ids with a chance of error")
    filter_equal_probability: bool = does(True, "changes nothing, as in the reference system")
    hashtable_init_capacity: int = does(0, "changes nothing: tables grow as they need")
    use_native_multi_hash_table: bool | None = does(None, _LAYOUT)
    embedding_prefetch_capacity: int = does(0, "steps whose rows are looked up ahead")
    enable_embedding_postpush: bool = does(
        False, "whether rows and dense parameters are updated during the next step"
    )
    enable_variable_prefetch: bool = does(
        False, "changes nothing: a step brings dense parameters, or with postpush a read during it"
    )
    enable_variable_postpush: bool = does(False, "the same as `enable_embedding_postpush`")
    enable_sync_training: bool = does(
        False, "whether ranks train together: `distributed_sync_train`"
    )
    enable_partial_sync_training: bool = refused(False, _BOTH)
    enable_gpu_training: bool = refused(False, _GPU)
    processes_per_gpu: int = does(1, "changes nothing, as in the reference system")
    merge_sync_training_ckpt: bool = refused(True, "a checkpoint of each rank")
    mode: str = does("train", "mode of the task, as `params.mode`")
    partial_recovery: bool | None = does(
        None,
        "whether 0 of `max_retry_times` means 6; a server that comes back restores its shards",
    )
    tide_start_hour: int | None = refused(None, _TIDE)
    tide_start_minute: int | None = refused(None, _TIDE)
    tide_end_hour: int | None = refused(None, _TIDE)
    tide_end_minute: int | None = refused(None, _TIDE)
    tide_save_secs: int | None = refused(None, _TIDE)
    enable_realtime_training: bool = refused(False, SERVING)
    enable_async_optimize: bool = does(False, "of ranks: as `enable_embedding_postpush`")
    enable_pipelined_fwda2a: bool = does(
        False, "of ranks: whether rows are exchanged one more step ahead"
    )
    enable_pipelined_bwda2a: bool = does(False, "of ranks: as `enable_embedding_postpush`")
    profile_some_steps_from: int | None = refused(None, _PROFILER)
    profile_save_steps_interval: int = refused(5000, _PROFILER)
    profile_with_nvprof_from_to: str | None = refused(None, _GPU)
    reorder_fids_in_data_pipeline: bool = does(
        False, "changes nothing: ranks send each id of a table once"
    )
    chief_timeout_secs: int = does(1800, "limit on the wait of the chief for the workers")
    save_checkpoints_secs: int | None = does(None, "seconds between two checkpoints")
    save_checkpoints_steps: int | None = does(None, "steps between two checkpoints, instead")
    dense_only_save_checkpoints_secs: int | None = does(
        None, "seconds between two checkpoints without tables"
    )
    dense_only_save_checkpoints_steps: int | None = does(
        None, "steps between two checkpoints without tables, instead"
    )
    dense_only_stop_training_when_save: bool = does(
        False, "changes nothing: a save is a cut, which stops no step"
    )
    warmup_file: str = does("./warmup_file", "changes nothing without serving")
    skip_zero_embedding_when_serving: bool = does(False, "changes nothing without serving")
    max_rpc_deadline_millis: int = does(30000, "changes nothing without serving")
    checkpoints_max_to_keep: int = does(10, "number of newest checkpoints to keep")
    submit_time_secs: int | None = does(None, "changes nothing: for timers of its scheduler")
    containers_ready_time_secs: int | None = does(
        None, "changes nothing: for timers of its scheduler"
    )
    cluster_type: str = does("stable", "tag of the metrics of the cluster")
    max_slow_start_wait_minute: int = does(
        10, "limit on the wait of `train.slow_start_steps`, and up to 10 minutes more"
    )
    enable_model_ckpt_info: bool = does(False, "changes nothing: manifests have the counts")
    feature_eviction_on_save: bool = refused(
        False, "an eviction at each save; set feature_evict_every_n_hours of slots"
    )
    only_feature_engineering: bool = refused(False, "a dump of features")
    enable_variable_partition: bool = does(
        True, "changes nothing: a dense parameter is whole on one server"
    )
    enable_fused_layout: bool = does(False, _LAYOUT)
    force_shutdown_ps: bool = does(False, "changes nothing: servers end with their job")
    clear_nn: bool = refused(False, _NAMES)
    continue_training: bool = refused(False, _NAMES)
    reload_alias_map: dict[str, str] | None = refused(None, _NAMES)  # noqa: RUF009
    enable_alias_map_auto_gen: bool | None = refused(None, _NAMES)
    enable_model_dump: bool = refused(False, "files of exported models")
    enable_resource_constrained_roughsort: bool = refused(False, _ITEMS)
    roughsort_candidate_items_path: str | None = refused(None, _ITEMS)
    roughsort_items_use_parquet: bool = refused(False, _ITEMS)
    items_input_lagrangex_header: bool = refused(False, _ITEMS)
    items_input_has_sort_id: bool = refused(False, _ITEMS)
    items_input_kafka_dump: bool = refused(False, _ITEMS)
    items_input_kafka_dump_prefix: bool = refused(False, _ITEMS)
    device_fn: Callable[..., Any] | None = refused(  # noqa: RUF009
        None, "placement of parameters by a function"
    )
    use_dataservice: bool | None = refused(None, _SERVICE)
    num_extra_dsworker_on_gpu_worker: int = refused(0, _SERVICE)
    save_summary_steps: int = does(100, "changes nothing: summaries have the pace of the sink")
    log_step_count_steps: int = does(100, "steps of each worker between two reports of figures")

    @property
    def enable_full_sync_training(self) -> bool:
        """Return whether tables, too, are trained synchronously."""
        return self.enable_sync_training and not self.enable_partial_sync_training

    def data_source(self) -> ServiceSource | None:
        """Return the data service from which workers read; None for their input functions."""
        return None

    def check(self) -> None:
        """Refuse values that need a part which is not here, or that contradict each other.

        Raises:
            NotImplementedError: A field has a value that needs such a part.
            ValueError: Both paces of one kind of checkpoints are set.
        """
        name = type(self).__name__
        for each in fields(self):
            value, needs = getattr(self, each.name), each.metadata.get("needs")
            if needs and value != each.default:
                raise NotImplementedError(
                    f"[{name}] expected {each.name}={each.default!r}, got {value!r}; another value "
                    f"needs {needs}"
                )
        for prefix in ("", "dense_only_"):
            paces = [f"{prefix}save_checkpoints_{unit}" for unit in ("secs", "steps")]
            if all(getattr(self, pace) is not None for pace in paces):
                raise ValueError(f"Can not provide both {paces[0]} and {paces[1]}.")


@dataclass
class DistributedCpuTrainingConfig(CpuTrainingConfig):
    """Hold the options of a job of several processes; see `CpuTrainingConfig`."""

    model_dir: str = does("", "folder for checkpoints, which all processes reach")
    tensorboard_log_path: str = does("", "changes nothing, as in the reference system")
    intra_op_parallelism_threads: int = does(
        8, "changes nothing: a process has the threads of torch"
    )
    inter_op_parallelism_threads: int = does(
        16, "changes nothing: a process has the threads of torch"
    )
    num_extra_ps: int = does(0, "servers beyond `num_ps` among which a benchmark selects")
    num_redundant_ps: int = does(0, "servers that are started beyond those that are needed")
    uuid: str = does("", "name of the job")
    operation_timeout_in_ms: int = does(-1, "limit on a call to a server; -1 for the default")
    session_creation_timeout_secs: int = does(7200, "limit on the wait for processes of the job")
    max_retry_times: int = does(0, "tries after failures that changed the cluster")
    retry_wait_in_secs: int = does(30, "seconds before a further try")
    fountain_zk_host: str = refused("", _FOUNTAIN)
    fountain_model_name: str = refused("", _FOUNTAIN)
    dc_aware: bool = refused(False, "a cluster of several data centers")
