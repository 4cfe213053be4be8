import pytest

from monolith.errors import AbortedError
from monolith.native_training.tasks.step_limit import StepLimitHook
from monolith.train.driver import Coordinator, Run, StepContext, StepResults, drive


@pytest.mark.parametrize(
    ("limits", "step"),
    [((3, None), 8), ((None, 7), 7), ((3, 7), 7), ((1, 7), 6), ((None, 5), 5), ((3, 2), 5)],
)
def test_a_run_ends_after_its_steps_or_at_the_last_one(limits, step):
    run = Run(global_step=5)

    def body():
        run.global_step += 1

    assert drive(body, [StepLimitHook(*limits)], run=run).global_step == step


def test_a_recovery_does_not_move_the_last_step():
    run, errors = Run(global_step=5), [AbortedError("gone")]

    def body():
        if run.global_step == 7 and errors:
            raise errors.pop()
        run.global_step += 1

    hook = StepLimitHook(3)
    assert drive(body, [hook], run=run).global_step == 8
    assert drive(body, [hook], run=run).global_step == 11


def test_without_limits_the_input_ends_the_run():
    steps = iter(range(3))
    drive(lambda: next(steps), [StepLimitHook()])
    assert next(steps, None) is None


def test_a_recovery_adds_no_steps():
    hook, coordinator = StepLimitHook(3), Coordinator()
    hook.begin()
    hook.after_create_session(Run(global_step=5), coordinator)
    run = Run(global_step=7)
    hook.after_create_session(run, coordinator)
    run.global_step = 8
    hook.after_run(StepContext(run, coordinator), StepResults(None))
    assert coordinator.stop_requested
