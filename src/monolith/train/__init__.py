"""Runs: the loop that drives them, hooks around it, and queues between their threads."""

from monolith.train.async_functions import AsyncFunctionManager, AsyncPushHook
from monolith.train.bounded_queue import BoundedQueue
from monolith.train.context import Context, FeatureFactory
from monolith.train.driver import drive
from monolith.train.figures import Figures, Metric, ReportHook
from monolith.train.fit import FitResult
from monolith.train.hooks import CurrentRunHook
from monolith.train.inputs import Inputs
from monolith.train.local import local_train
from monolith.train.loop import BatchOutput, StepOutput
from monolith.train.prefetch_queue import DevicePrefetchQueue, PrefetchQueue
from monolith.train.prefetched import PENDING, Prefetched, prefetch
from monolith.train.queue_runner import EnqueueHook, QueueRunner
from monolith.train.resume import CheckpointHook
from monolith.train.settings import EarlyStop, TrainSettings
from monolith.train.task import Mode, Task, TaskSettings
from monolith.train.tensor_queue import ElementSpec, TensorQueue
from monolith.train.tide import CustomGlobalStepWaiterHook, TideStoppingHook, TideWindow
from monolith.train.trainer import Trainer
from monolith.util.coordinator import Coordinator
from monolith.util.hooks import Hook, StepContext, StepResults
from monolith.util.run import Run, current_run

__all__ = [
    "AsyncFunctionManager",
    "AsyncPushHook",
    "BatchOutput",
    "BoundedQueue",
    "CheckpointHook",
    "Context",
    "Coordinator",
    "CurrentRunHook",
    "CustomGlobalStepWaiterHook",
    "DevicePrefetchQueue",
    "EarlyStop",
    "ElementSpec",
    "EnqueueHook",
    "FeatureFactory",
    "Figures",
    "FitResult",
    "Hook",
    "Inputs",
    "Metric",
    "Mode",
    "PENDING",
    "PrefetchQueue",
    "Prefetched",
    "QueueRunner",
    "ReportHook",
    "Run",
    "StepContext",
    "StepOutput",
    "StepResults",
    "Task",
    "TaskSettings",
    "TensorQueue",
    "TideStoppingHook",
    "TideWindow",
    "TrainSettings",
    "Trainer",
    "current_run",
    "drive",
    "local_train",
    "prefetch",
]
