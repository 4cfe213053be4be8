"""Give `NativeTask` and what its model function takes and returns."""

from typing import Any

from monolith.native_training.tasks.context import Context as _Context
from monolith.native_training.tasks.native_params import ExportMode as ExportMode
from monolith.native_training.tasks.native_task import ModelSpec as EstimatorSpec
from monolith.native_training.tasks.native_task import NativeTask as NativeTask
from monolith.train.task import Mode as ModeKeys

__all__ = ["EstimatorSpec", "ExportMode", "ModeKeys", "NativeContext", "NativeTask"]


class NativeContext(_Context):
    """`Context`, with the reference system's name of an argument."""

    def __init__(
        self,
        feature_factory: Any = None,
        async_function_mgr: Any = None,
        layout_factory: Any = None,
    ) -> None:
        super().__init__(feature_factory, async_function_mgr, layout_factory)
