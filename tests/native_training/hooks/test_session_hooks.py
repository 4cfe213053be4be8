import pytest

from monolith.native_training.hooks.session_hooks import SetCurrentSessionHook, get_current_session
from monolith.train import Coordinator, Run
from monolith.train.driver import drive
from tests.train.tasks import StopAfter


@pytest.mark.req("TS-SESH-T1")
def test_the_hook_makes_its_run_the_current_session_until_its_end():
    hook, run = SetCurrentSessionHook(), Run()
    assert get_current_session() is None
    with Coordinator() as coordinator:  # of a driver that does not make its run current
        hook.after_create_session(run, coordinator)
        assert get_current_session() is run
        hook.end(run)
        assert get_current_session() is None
    assert get_current_session() is None


def test_a_run_with_the_hook_is_current_inside_of_it_only():
    seen = []
    run = drive(lambda: seen.append(get_current_session()), [SetCurrentSessionHook(), StopAfter(2)])
    assert seen == [run, run]
    assert get_current_session() is None
