"""Train a task: `Trainer`, its settings, hooks and figures."""

from monolith.train.driver import (
    Coordinator,
    Hook,
    Run,
    StepContext,
    StepResults,
)
from monolith.train.figures import Figures, Metric, ReportHook
from monolith.train.inputs import Inputs
from monolith.train.loop import BatchOutput, StepOutput
from monolith.train.profiling import ProfilerHook
from monolith.train.run_metrics import FitResult
from monolith.train.saves.checkpoint_hook import CheckpointHook
from monolith.train.settings import EarlyStop, TrainSettings
from monolith.train.task import Mode, Task, TaskSettings
from monolith.train.trainer import Trainer

__all__ = [
    "BatchOutput",
    "CheckpointHook",
    "Coordinator",
    "EarlyStop",
    "Figures",
    "FitResult",
    "Hook",
    "Inputs",
    "Metric",
    "Mode",
    "ProfilerHook",
    "ReportHook",
    "Run",
    "StepContext",
    "StepOutput",
    "StepResults",
    "Task",
    "TaskSettings",
    "TrainSettings",
    "Trainer",
]
