import inspect

import pytest

from monolith.native_training import session_run_hooks
from monolith.native_training.saver import tide

NAMES = ["CustomGlobalStepWaiterHook", "TideStoppingHook", "before", "tide_available_now"]


@pytest.mark.parametrize("name", NAMES)
def test_the_import_path_has_the_name(name):
    assert getattr(session_run_hooks, name) is getattr(tide, name)


def test_the_waiter_takes_its_window_as_four_numbers():
    parameters = inspect.signature(session_run_hooks.CustomGlobalStepWaiterHook).parameters
    given = {name: p.default for name, p in parameters.items() if p.kind != p.KEYWORD_ONLY}
    window = dict.fromkeys(
        ("tide_start_hour", "tide_start_minute", "tide_end_hour", "tide_end_minute")
    )
    assert given == {
        "wait_until_step": inspect.Parameter.empty,
        **window,
        "max_non_tide_wait_minute": 10,
    }
