import pytest

from monolith.native_training.tasks.step_limit import StepLimitHook
from monolith.train.driver import Run, drive


@pytest.mark.parametrize(
    ("limits", "step"),
    [((3, None), 8), ((None, 7), 7), ((3, 7), 7), ((1, 7), 6), ((None, 5), 5), ((3, 2), 5)],
)
def test_a_run_ends_after_its_steps_or_at_the_last_one(limits, step):
    run = Run(global_step=5)

    def body():
        run.global_step += 1

    assert drive(body, [StepLimitHook(*limits)], run=run).global_step == step


def test_without_limits_the_input_ends_the_run():
    steps = iter(range(3))
    drive(lambda: next(steps), [StepLimitHook()])
    assert next(steps, None) is None
