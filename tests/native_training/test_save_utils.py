import pytest
import torch

from monolith import checkpoint
from monolith.native_training import runner_utils, save_utils, saver
from monolith.train.driver import Run, drive


def test_names_of_the_reference_are_those_of_the_package():
    names = ("PartialRecoverySaver", "PsMonitor", "SaveHelper", "SaverBuilder")
    for name in (*names, "get_latest_checkpoint_state", "get_monolith_checkpoint_state"):
        assert getattr(save_utils, name) is getattr(saver, name)
    assert runner_utils.get_checkpoint_state is saver.get_checkpoint_state
    assert runner_utils.isabs("hdfs:/a")


def test_a_timer_takes_the_window_as_four_numbers():
    numbers = {"tide_start_hour": 1, "tide_start_minute": 0, "tide_end_hour": 3}
    timer = save_utils.SecondOrStepTimerWithTideSetting(
        10, **numbers, tide_end_minute=0, tide_every_secs=5
    )
    assert timer.should_trigger_for_step(0)
    with pytest.raises(ValueError, match="give all four or none"):
        save_utils.SecondOrStepTimerWithTideSetting(10, **numbers)


def test_a_hook_takes_the_window_as_four_numbers(tmp_path):
    numbers = dict.fromkeys(("tide_start_hour", "tide_end_hour"), 0)
    minutes = dict.fromkeys(("tide_start_minute", "tide_end_minute"), 0)
    hook = save_utils.NoFirstSaveCheckpointSaverHook(
        tmp_path,
        save_steps=1,
        saver=saver.PartialRecoverySaver({"w": torch.ones(1)}),
        **numbers,
        **minutes,
        tide_save_secs=5,
    )
    run = Run(global_step=0)

    def step():
        if run.global_step:
            raise StopIteration
        run.global_step = 1

    drive(step, [hook], run=run)
    assert isinstance(hook, saver.NoFirstSaveCheckpointSaverHook)
    assert checkpoint.checkpoint_exists(f"{tmp_path}/model.ckpt-1")
