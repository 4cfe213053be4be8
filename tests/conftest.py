import signal

import hypothesis
import pytest

pytest_plugins = ["pytester", "tests.acceptance"]

pytest.register_assert_rewrite("tests.suites")

# The same examples in every run, and no failures because a machine was busy.
hypothesis.settings.register_profile("project", deadline=None, derandomize=True)
hypothesis.settings.register_profile("fast", deadline=None, derandomize=True, max_examples=5)
hypothesis.settings.register_profile("long", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("project")

# A shell in the background ignores it, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item):
    """Mark tests of compiled graphs as thorough: a compilation takes longer than most tests."""
    if "compiled" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.thorough)
