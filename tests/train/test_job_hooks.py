"""Hooks of a worker: copies are refreshed after steps, and the chief waits at the end."""

import types

import pytest

from monolith.train.hooks import JobEndHook, RefreshHook


class Served:
    """Notes the order of reads and writes of copies."""

    def __init__(self, *, wants_values):
        self.wants_values, self.calls = wants_values, []

    def fetch(self):
        self.calls.append("fetch")

    def refresh(self):
        self.calls.append("refresh")


def test_copies_are_read_during_a_step_and_written_after_it():
    served = Served(wants_values=False)
    hook = RefreshHook(served)
    fetch = hook.before_run(None)
    assert served.calls == []
    fetch()
    hook.after_run(None, None)
    assert served.calls == ["fetch", "refresh"]


def test_values_that_come_with_the_answer_are_not_read():
    served = Served(wants_values=True)
    hook = RefreshHook(served)
    assert hook.before_run(None) is None
    hook.after_run(None, None)
    assert served.calls == ["refresh"]


class Job:
    """A job of which others have made 9 steps."""

    def __init__(self):
        self.calls = []

    def stop_all(self):
        self.calls.append("stop")

    def await_others(self, seconds):
        self.calls.append(seconds)

    def read_steps(self):
        return 9


@pytest.mark.parametrize(("is_stopping", "calls"), [(True, ["stop", 5.0]), (False, [5.0])])
@pytest.mark.parametrize(("own", "steps"), [(None, 9), (3, 9), (12, 12)])
def test_the_chief_waits_for_the_others_and_counts_their_steps(is_stopping, calls, own, steps):
    job, run = Job(), types.SimpleNamespace(global_step=own)
    JobEndHook(job, lambda: is_stopping, 5.0).end(run)
    assert (job.calls, run.global_step) == (calls, steps)
