import pytest

from monolith.native_training.tasks.ffm import FFMTask
from monolith.native_training.tasks.task_settings import NativeSettings


def test_settings_of_the_command_line_become_parameters():
    settings = NativeSettings({"train": "x"}, 32, {"label_high": 2, "train.max_steps": 5})
    task = FFMTask.from_settings(settings)
    assert (task.p.train.file_pattern, task.p.train.per_replica_batch_size) == ("x", 32)
    assert (task.p.label_high, task.p.train.max_steps) == (2, 5)
    assert task.settings is settings


def test_what_is_not_set_stays():
    task = FFMTask.from_settings(NativeSettings())
    assert task.p == FFMTask.params()


def test_an_unknown_parameter_names_the_nearest():
    with pytest.raises(ValueError, match=r"got 'params.label_hig': .*did you mean: \[label_high\]"):
        FFMTask.from_settings(NativeSettings(params={"label_hig": 2}))
