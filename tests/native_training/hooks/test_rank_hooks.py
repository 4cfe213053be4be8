import logging
from datetime import datetime, timezone

import pytest
import torch

from monolith.native_training.collectives import torch_ranks
from monolith.native_training.saver import SecondOrStepTimer
from monolith.native_training.saver.tide import TimeSource
from monolith.native_training.sync_training_hooks import (
    ParameterSyncHook,
    ReqTimeControlDumpHook,
    SyncTrainingBarrierSaverListener,
    SyncTrainingForceDumpHook,
    SyncTrainingInfoHook,
    SyncTrainingSaverControlHook,
    refresh_sync_config,
)
from monolith.table import Segment, Table, TableConfig
from monolith.train.driver import Run
from tests.native_training.hooks.rank_hook_calls import Note, driven

CALLS = "tests.native_training.hooks.rank_hook_calls"


class Clock:
    now = 50.0

    def __call__(self):
        return self.now


def at(hour):
    return TimeSource(utc_now=lambda: datetime(2026, 1, 1, hour, 59, tzinfo=timezone.utc))


@pytest.mark.dist
@pytest.mark.req("NT-STRH-T1")
def test_all_ranks_dump_and_stop_by_the_files_of_one(rank_forks, tmp_path):
    found = rank_forks.run(tmp_path, 2, f"{CALLS}:dump_and_stop", str(tmp_path))
    # The end of a run is saved too.
    names = ["model.ckpt-100.manifest.json", "model.ckpt-200.manifest.json"]
    assert found == [[200, names], [200, names]]


@pytest.mark.req("NT-STRH-T1")
@pytest.mark.parametrize(
    ("hour", "steps"), [(17, []), (18, [1, 2]), (20, [1, 2]), (21, []), (0, [])]
)
def test_the_timer_runs_in_the_evening(alone, tmp_path, hour, steps):
    note = Note(SecondOrStepTimer(every_steps=1))
    hook = SyncTrainingForceDumpHook(str(tmp_path), note.timer, 1, source=at(hour))
    driven(lambda: [hook, note], 2)
    assert note.steps == steps


def test_a_dump_is_of_one_step(alone, tmp_path):
    (tmp_path / "dump_4").touch()
    note = Note(SecondOrStepTimer(every_steps=1))
    hook = SyncTrainingForceDumpHook(str(tmp_path), note.timer, 4, source=at(3))
    note.timer.disable()
    driven(lambda: [hook, note], 7)
    assert note.steps == [4]


@pytest.mark.dist
@pytest.mark.req("NT-STRH-T2")
def test_the_file_online_turns_the_timer_of_all_ranks_on_and_off(rank_forks, tmp_path):
    found = rank_forks.run(tmp_path, 2, f"{CALLS}:online", str(tmp_path))
    assert found == [[1, 4, 5, 6, 7]] * 2  # no look at the file before step 2


@pytest.mark.dist
@pytest.mark.req("NT-STRH-T2")
@pytest.mark.parametrize(
    ("limit", "now", "step", "saved"),
    [
        ("100", 99, 6, []),
        ("100", 100, 2, [2]),
        (None, 100, 6, []),
        ("", 100, 6, []),
        ("soon", 100, 6, []),
    ],
)
def test_requests_that_reach_the_limit_stop_all_ranks(
    rank_forks, tmp_path, limit, now, step, saved
):
    found = rank_forks.run(tmp_path, 2, f"{CALLS}:request_times", str(tmp_path), limit, now)
    assert found == [[step, saved]] * 2


def test_the_latest_request_counts(alone, tmp_path):
    (tmp_path / "limit_req_time").write_text("5")
    run = Run(global_step=0)
    for value in (3, None, torch.empty(0), torch.tensor([7, 1]), lambda: None):
        run.add("req_time", value)
    hook = ReqTimeControlDumpHook(str(tmp_path), SecondOrStepTimer(1), 1)
    assert driven(lambda: [hook], 9, run) == 1


def test_a_file_without_requests_stops_nothing(alone, tmp_path):
    (tmp_path / "limit_req_time").write_text("0")
    hook = ReqTimeControlDumpHook(str(tmp_path), SecondOrStepTimer(1), 1)
    assert driven(lambda: [hook], 3) == 3


@pytest.mark.parametrize(
    "hook", [SyncTrainingForceDumpHook, SyncTrainingSaverControlHook, ReqTimeControlDumpHook]
)
def test_an_interval_has_a_step(hook):
    with pytest.raises(
        ValueError, match=rf"\[{hook.__name__}\] expected step_interval >= 1, got 0"
    ):
        hook("folder", SecondOrStepTimer(1), 0)


def test_an_error_of_the_barrier_is_logged(caplog):
    SyncTrainingBarrierSaverListener().after_save(Run(), 7)  # without `hvd_lib.init()`
    assert "the ranks have not met after the save of step 7" in caplog.text


def test_the_barrier_is_a_broadcast_from_rank_0(alone, monkeypatch):
    calls = []
    monkeypatch.setattr(torch_ranks, "broadcast", lambda *a, **k: calls.append(a))
    SyncTrainingBarrierSaverListener().after_save(Run(), 7)
    assert calls == [([7], 0)]


class Serving:
    """A backend, and a client that notes what it is told."""

    def __init__(self):
        self.asked, self.sent, self.targets = [], [], ["a:1"]

    def get_sync_targets(self, sub_graph):
        self.asked.append(sub_graph)
        return "clicks", list(self.targets)

    def create_sync_op(self):
        return self.sent.append


@pytest.mark.req("NT-STRH-T3")
def test_targets_are_refreshed_after_the_interval_and_used_in_every_step():
    serving, clock = Serving(), Clock()
    hook = ParameterSyncHook(serving, 3, 100, client=serving, clock=clock)
    run = Run(global_step=0)

    def step():
        clock.now += 40
        serving.targets = [f"a:{run.global_step}"]
        if run.global_step == 6:
            raise StopIteration
        run.global_step += 1

    from monolith.train.driver import drive

    drive(step, [hook], run=run)
    assert serving.asked == ["ps_3"] * 2  # after 40 and 160 seconds
    assert [config.targets for config in serving.sent] == [("a:0",)] * 3 + [("a:3",)] * 3


def test_a_config_has_the_model_and_facts_of_its_targets():
    class Backend:
        def get_sync_targets(self, sub_graph):
            return f"m:{sub_graph}", {"a:1": "east", "b:2": "west"}

    config = refresh_sync_config(Backend(), 0)
    assert (config.model_name, config.targets) == ("m:ps_0", ("a:1", "b:2"))
    assert config.targets_extra_info == ("east", "west")
    assert (config.signature_name, config.timeout_in_ms) == ("hashtable_assign", 3000)


@pytest.mark.req("NT-STRH-T4")
def test_sizes_of_tables_are_logged_once_in_ten_minutes(caplog):
    caplog.set_level(logging.INFO)
    clock, run = Clock(), Run(global_step=0)
    user, item = (Table(TableConfig(name, Segment(1))) for name in ("user", "item"))
    with user, item:
        user.assign(torch.tensor([1, 2]), torch.zeros(2, 1))
        run.add("hash_tables", user)
        run.add("hash_tables", item)

        class Later(Note):
            def __init__(self):
                pass

            def after_run(self, ctx, results):
                clock.now += 200

        driven(lambda: [SyncTrainingInfoHook(clock=clock), Later()], 5, run)
    lines = [record.getMessage() for record in caplog.records if "rows of the" in record.msg]
    assert lines == ["rows of the tables: item: 0, user: 2"] * 2
