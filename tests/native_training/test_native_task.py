import pytest

from monolith.native_training import native_task, native_task_context
from monolith.native_training.queues import AsyncFunctionManager
from monolith.native_training.tasks import task_context
from monolith.native_training.tasks.native_task import ModelSpec, NativeTask
from monolith.train import Mode


def test_the_names_of_the_reference_system_are_ours():
    assert native_task.NativeTask is NativeTask
    assert native_task.EstimatorSpec is ModelSpec
    assert native_task.ModeKeys is Mode
    assert native_task.ExportMode.STANDALONE == 1
    assert native_task_context.get is task_context.get


def test_a_context_takes_one_of_two_factories():
    text = r"^Cannot set feature_factory and layout_factory in the same time$"
    with pytest.raises(ValueError, match=text):
        native_task.NativeContext(feature_factory=object(), layout_factory=object())


def test_a_context_puts_functions_off_by_its_manager():
    manager, pushed = AsyncFunctionManager(is_async=False), []
    context = native_task.NativeContext(async_function_mgr=manager)
    context.add_async_function(pushed.append, [1])
    assert pushed == [1]
