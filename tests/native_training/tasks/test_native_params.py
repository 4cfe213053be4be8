import pytest

from monolith.native_training.tasks.native_params import ExportMode
from monolith.native_training.tasks.native_task import NativeTask
from tests.native_training.tasks.native_tasks import Score


def test_parameters_have_the_defaults_of_the_reference_system():
    params = NativeTask.params()
    assert (params.cls, params.name, params.mode) == (NativeTask, "NativeTask", "train")
    assert params.eval.steps_per_eval == 10000
    assert params.train.max_pending_seconds_for_barrier == 30
    assert params.metrics.deep_insight_target == "ctr_head"
    assert params.metrics.extra_fields_keys == []
    assert params.serving.export_mode == ExportMode.DISTRIBUTED == 2


def test_lists_belong_to_one_task():
    NativeTask.params().metrics.extra_fields_keys.append("x")
    assert NativeTask.params().metrics.extra_fields_keys == []


def test_parameters_make_their_task():
    assert isinstance(Score.params().instantiate(), Score)


@pytest.mark.parametrize(
    ("name", "value", "default"),
    [("mode", "eval", "'train'"), ("serving.export_when_saving", True, "False")],
)
def test_parameters_of_parts_that_are_not_built_are_refused(name, value, default):
    params = Score.params().set(**{name: value})
    with pytest.raises(NotImplementedError) as caught:
        params.instantiate()
    assert str(caught.value) == (
        f"[NativeTask] expected params.{name}={default}, got {value!r}; what it asks for is not "
        "built"
    )
