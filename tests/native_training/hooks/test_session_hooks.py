import pytest

from monolith.native_training.hooks.session_hooks import SetCurrentSessionHook, get_current_session
from monolith.train import Hook
from monolith.train.driver import drive


@pytest.mark.req("TS-SESH-T1")
def test_a_run_is_current_inside_of_it_only():
    seen = []

    class Once(Hook):
        def after_run(self, ctx, results):
            ctx.request_stop()

    assert get_current_session() is None
    drive(lambda: seen.append(get_current_session()), [SetCurrentSessionHook(), Once()])
    assert seen[0] is not None
    assert get_current_session() is None
