"""Give the config of a process of a job, its discovery, and the checkpoint that it starts from."""

from monolith.checkpoint.storage import isabs as isabs
from monolith.native_training.jobs.runner_config import ContainerType as ContainerType
from monolith.native_training.jobs.runner_config import RunnerConfig as RunnerConfig
from monolith.native_training.jobs.runner_config import get_discovery as get_discovery
from monolith.native_training.jobs.runner_config import monolith_discovery as monolith_discovery
from monolith.native_training.saver.restore_override import (
    gen_get_checkpoint_state as gen_get_checkpoint_state,
)
from monolith.native_training.saver.restore_override import (
    get_checkpoint_state as get_checkpoint_state,
)
