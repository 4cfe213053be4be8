"""`CpuTraining`: a task with its place in a job, for a trainer to run."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from monolith.data import Batch
from monolith.native_training.jobs.training_config import CpuTrainingConfig
from monolith.native_training.tasks import task_context
from monolith.native_training.tasks.input_data import Columns
from monolith.native_training.tasks.native_task import ModelSpec, NativeTask
from monolith.native_training.tasks.task_context import NativeTaskContext
from monolith.train.task import Mode

_Result = TypeVar("_Result")

EXTRA_PS_BENCHMARK_SECS = 120.0
"""Seconds of the benchmark that selects among servers of which there are more than needed."""


class FeatureConfigs(NamedTuple):
    """Describe the features of a task by name.

    Attributes:
        tables: config of the table of each feature.
        unmerged_dims: widths of the slices of each feature as they were added.
        combiners: combiner of each feature.
    """

    tables: Mapping[str, Any]
    unmerged_dims: Mapping[str, list[int]]
    combiners: Mapping[str, Any]


class CpuTraining:
    """Hold a task and the config of its job; functions of the task run as a part of this job.

    The trainer runs the task itself, which this class leaves as it is.

    Args:
        config: Options of the job. Its empty `model_name` becomes that of the task, and an unset
            `use_native_multi_hash_table` True; what changes later is not seen here.
        task: Task of the job.
        sync_backend: Backend of parameters that are sent to serving; None, as there is none yet.

    Attributes:
        config: The options.
        task: The task.
        context: Place of the process in the job.

    Raises:
        NotImplementedError: The config, or a `sync_backend`, needs a part that is not here.
        ValueError: The process is no worker.
    """

    def __init__(
        self, config: CpuTrainingConfig, task: NativeTask, sync_backend: Any = None
    ) -> None:
        if config.server_type != "worker":
            raise ValueError("server_type in CpuTraining must be `worker`")
        if sync_backend is not None:
            raise NotImplementedError(
                f"[CpuTraining] expected sync_backend=None, got {sync_backend!r}; a backend needs "
                "serving that follows the training"
            )
        config.check()
        config.model_name = config.model_name or task.model_name
        if config.use_native_multi_hash_table is None:
            config.use_native_multi_hash_table = True
        self.config, self.task = copy.deepcopy(config), task
        self.context = NativeTaskContext(
            num_ps=config.num_ps,
            num_workers=config.num_workers,
            worker_index=config.index,
            model_name=config.model_name,
            server_type=config.server_type,
        )

    @property
    def feature_configs(self) -> FeatureConfigs:
        """Return the features that the model function makes, which is called for it once."""
        tables = self._in_context(lambda: self.task.slot_tables)
        columns = [(name, table) for table in tables for name in table.feature_names]
        return FeatureConfigs(
            {name: table.instance() for name, table in columns},
            {name: list(table.unmerged_slice_dims) for name, table in columns},
            {name: table.feature_to_combiners[name] for name, table in columns},
        )

    def create_input_fn(self, mode: Mode) -> Callable[[], Iterable[Columns | Batch]]:
        """Return the input function of the task for a mode."""
        return lambda: self._in_context(lambda: self.task.create_input_fn(mode)())

    def create_model_fn(self) -> Callable[[dict[str, Any], Mode, Any], ModelSpec]:
        """Return the model function of the task."""

        def model_fn(features: dict[str, Any], mode: Mode, config: Any) -> ModelSpec:
            model = self.task.create_model_fn()
            return self._in_context(lambda: model(features, mode, config))

        return model_fn

    def create_serving_input_receiver_fn(self) -> Any:
        """Return the function of the task that describes a request; None without one."""
        return self.task.create_serving_input_receiver_fn()

    def _in_context(self, call: Callable[[], _Result]) -> _Result:
        with task_context.with_ctx(self.context):
            return call()
