"""Give the configs of jobs, and `local_train`, which trains a task with servers in the process."""

from monolith.native_training.jobs.cpu_training import EXTRA_PS_BENCHMARK_SECS, CpuTraining
from monolith.native_training.jobs.ps_end import shutdown_ps
from monolith.native_training.jobs.training_config import (
    CpuTrainingConfig,
    DistributedCpuTrainingConfig,
)
from monolith.native_training.tasks.local import local_train

__all__ = ["CpuTraining", "CpuTrainingConfig", "DistributedCpuTrainingConfig", "local_train"]

# Tests of a job replace them.
_EXTRA_PS_BENCHMARK_SECS = EXTRA_PS_BENCHMARK_SECS
_shutdown_ps = shutdown_ps
