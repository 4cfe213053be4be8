import json
import os
import tempfile
import threading
from pathlib import Path

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from monolith.train import Hook, ProfilerHook, Trainer, TrainSettings, profiling
from tests.train.tasks import Clicks, Counting, Raise, clicks

STAGES = ("read", "lookup", "wait", "forward", "backward", "update", "step")


def fit(hook, task=None, *hooks, **options):
    with Trainer(task or Counting(12), TrainSettings(**options), hooks=[*hooks, hook]) as trainer:
        return trainer.fit()


def ranges(path):
    """Return how often each stage is in a trace."""
    with open(path) as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    return {stage: names.count(f"monolith.{stage}") for stage in STAGES}


class Profiled(Hook):
    """Records the steps at which torch's profiler runs."""

    def __init__(self):
        self.steps = []

    def after_run(self, ctx, results):
        if torch.autograd.profiler._is_profiler_enabled:
            self.steps.append(ctx.run.global_step - 1)


def test_a_trace_has_the_stages_of_the_steps_of_the_window(tmp_path):
    fit(hook := ProfilerHook(tmp_path, (2, 5)), Clicks(clicks(8)))
    (path,) = hook.traces
    assert ranges(path) == dict.fromkeys(STAGES, 3)
    assert os.listdir(tmp_path) == [os.path.basename(path)]
    assert path.endswith(".pt.trace.json")


def test_a_trace_has_the_stages_of_other_threads(tmp_path):
    fit(hook := ProfilerHook(tmp_path, (2, 6)), Clicks(clicks(12)), prefetch=1)
    assert 2 <= ranges(hook.traces[0])["lookup"] <= 6


def test_a_window_begins_after_that_of_another_hook(tmp_path):
    first, second = ProfilerHook(tmp_path / "a", (2, 5)), ProfilerHook(tmp_path / "b", (3, 5))
    fit(first, Clicks(clicks(9)), second)
    assert [ranges(*hook.traces)["step"] for hook in (first, second)] == [3, 2]


def test_outside_of_a_window_no_stage_is_recorded(tmp_path):
    class Recorded(Counting):
        def loss(self, model, inputs, batch):
            assert torch.autograd.profiler._is_profiler_enabled == (self.seen == [0, 1])
            return super().loss(model, inputs, batch)

    fit(hook := ProfilerHook(tmp_path, (2, 3)), Recorded(6))
    assert len(hook.traces) == 1


def test_windows_repeat_after_save_steps(tmp_path):
    fit(hook := ProfilerHook(tmp_path, (1, 3), save_steps=4))
    assert [ranges(path)["step"] for path in hook.traces] == [2, 2, 2]  # from steps 1, 5, 9


def test_windows_repeat_after_save_secs(tmp_path):
    seconds = iter([0.0, 5.0, 9.0, 10.0, 11.0, *[12.0] * 20])  # read where a window may begin
    hook = ProfilerHook(tmp_path, (0, 1), save_secs=10.0, clock=lambda: next(seconds))
    fit(hook)
    assert len(hook.traces) == 2


def test_the_first_window_is_500_steps_after_the_start_and_has_10(tmp_path):
    fit(hook := ProfilerHook(tmp_path), Counting(520))
    assert [ranges(path)["step"] for path in hook.traces] == [hook.num_steps] == [10]
    fit(hook := ProfilerHook(tmp_path), Counting(499))
    assert hook.traces == []


def test_a_run_that_is_beyond_the_window_is_profiled_at_once(tmp_path):
    hook = ProfilerHook(tmp_path, (2, 4))
    with Trainer(Counting(12), TrainSettings(steps=3)) as trainer:
        batches = iter(trainer.task.source("train"))
        trainer.fit(batches)
        trainer.fit(batches, hooks=[hook])
    assert ranges(hook.traces[0])["step"] == 2


def test_a_window_that_the_end_of_the_run_cuts_short_has_a_trace(tmp_path):
    fit(hook := ProfilerHook(tmp_path, (9, 100)))
    assert ranges(hook.traces[0])["step"] == 3 + 1  # the last one found no batch


def test_a_run_that_fails_in_a_window_has_a_trace(tmp_path):
    hook = ProfilerHook(tmp_path, (1, 100))
    with pytest.raises(KeyError, match="as asked"):
        fit(hook, None, Raise(3, KeyError("as asked")))
    assert ranges(hook.traces[0])["step"] == 2
    assert not torch.autograd.profiler._is_profiler_enabled


def test_a_trace_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    hook = ProfilerHook(tmp_path / "traces", (1, 2))
    (tmp_path / "traces").rmdir()
    assert fit(hook).num_steps == 12
    assert hook.traces == []
    assert "is not written; the run goes on" in caplog.text


@pytest.mark.parametrize("window", [(None, 5), (5, 5), (5, 4)])
def test_a_window_without_steps_is_refused(tmp_path, window):
    with pytest.raises(ValueError, match=r"^End step invalid, expected one above the start step"):
        ProfilerHook(tmp_path, window)


@pytest.mark.parametrize(("window", "pace"), [((None, None), 10), ((5, 25), 20)])
def test_a_pace_below_the_window_is_refused(tmp_path, window, pace):
    with pytest.raises(
        ValueError, match=r"^Save steps must be greater than delta steps\(default: 10\), got"
    ):
        ProfilerHook(tmp_path, window, save_steps=pace)


@pytest.mark.parametrize("steps", [{"delta_steps": 0}, {"warm_up_steps": -1}])
def test_numbers_of_steps_out_of_range_are_refused(tmp_path, steps):
    with pytest.raises(ValueError, match=r"delta_steps >= 1 and warm_up_steps >= 0, got \d+ and"):
        ProfilerHook(tmp_path, **steps)


def test_a_window_begins_after_the_warm_up_of_its_run(tmp_path):
    hook = ProfilerHook(tmp_path, delta_steps=2, warm_up_steps=3)
    with Trainer(Counting(12), TrainSettings(steps=6)) as trainer:
        batches = iter(trainer.task.source("train"))
        trainer.fit(batches)
        trainer.fit(batches, hooks=[profiled := Profiled(), hook])
    assert profiled.steps == [9, 10]
    assert ranges(hook.traces[0])["step"] == 2


def test_two_paces_are_refused(tmp_path):
    with pytest.raises(ValueError, match="one of save_steps and save_secs, got 20 and 5"):
        ProfilerHook(tmp_path, save_steps=20, save_secs=5)


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"a folder that can be written, got .*file/traces"):
        ProfilerHook(tmp_path / "file" / "traces")


@pytest.fixture
def store(tmp_path):
    return f"memory://traces-{tmp_path.name}"


def test_a_trace_is_uploaded_to_a_store(store):
    fit(hook := ProfilerHook(store, (2, 5)), Clicks(clicks(8)))
    (path,) = hook.traces
    system = fsspec.filesystem("memory")
    assert [f"memory:/{name}" for name in system.find(store)] == [path]
    assert system.cat_file(path).count(b'"monolith.step"') == 3
    assert list(Path(tempfile.gettempdir()).glob("monolith-trace-*")) == []


def test_a_trace_that_is_not_uploaded_does_not_end_the_run(store, monkeypatch, caplog):
    def fail(*arguments, **options):
        raise PermissionError("denied")

    hook = ProfilerHook(store, (1, 2))
    monkeypatch.setattr(MemoryFileSystem, "_open", fail)
    assert fit(hook).num_steps == 12
    assert hook.traces == []
    assert f"the trace {store}/" in caplog.text


def test_a_trace_that_cannot_be_exported_leaves_no_folder(store, tmp_path, monkeypatch, caplog):
    def fail(profile, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", fail)
    assert fit(ProfilerHook(store, (1, 2))).num_steps == 12
    assert list(tmp_path.iterdir()) == []
    assert "is not written; the run goes on" in caplog.text


def test_a_run_waits_a_bounded_time_for_a_store_that_hangs(store, monkeypatch, caplog):
    is_over, open_file = threading.Event(), MemoryFileSystem._open

    def hang(*arguments, **options):
        is_over.wait()
        return open_file(*arguments, **options)

    hook = ProfilerHook(store, (1, 2))
    monkeypatch.setattr(profiling, "_UPLOAD_SECONDS", 0.01)
    monkeypatch.setattr(MemoryFileSystem, "_open", hang)
    fit(hook)
    is_over.set()
    for thread in threading.enumerate():
        if thread.name == "monolith-trace":
            thread.join(60)
    assert f"a trace is not yet in {store}; the run waits no longer" in caplog.text


def test_a_store_that_cannot_be_written_is_refused_at_the_start(store, monkeypatch):
    def fail(*arguments, **options):
        raise PermissionError("denied")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
    with pytest.raises(ValueError, match=rf"expected a folder .* got '{store}': denied; choose"):
        ProfilerHook(store)
