"""Give the registry of tasks by key."""

from monolith.native_training.tasks.registry import (
    SingleTaskModelParams,
    get_params,
    register_single_task_model,
)

__all__ = ["GetParams", "RegisterSingleTaskModel", "SingleTaskModelParams"]

RegisterSingleTaskModel = register_single_task_model
GetParams = get_params
