"""What the ranks of the tests of synchronous hooks call."""

import os
from datetime import datetime, timezone
from pathlib import Path

import torch

from monolith.native_training import hvd_lib
from monolith.native_training.save_utils import NoFirstSaveCheckpointSaverHook
from monolith.native_training.saver.tide import TimeSource
from monolith.native_training.sync_training_hooks import (
    ReqTimeControlDumpHook,
    SyncTrainingBarrierSaverListener,
    SyncTrainingForceDumpHook,
    SyncTrainingSaverControlHook,
)
from monolith.train.driver import Hook, Run, drive

AFTERNOON = TimeSource(utc_now=lambda: datetime(2026, 1, 1, 12, tzinfo=timezone.utc))


class Steps:
    """A step that counts, and ends the input after some steps."""

    def __init__(self, run, number):
        self.run, self.number = run, number

    def __call__(self):
        if self.run.global_step >= self.number:
            raise StopIteration
        self.run.global_step += 1


class Note(Hook):
    """Notes whether a timer would save after a step, as a hook that saves."""

    def __init__(self, timer):
        self.timer, self.steps = timer, []

    def after_run(self, ctx, results):
        step = ctx.run.global_step
        if self.timer.should_trigger_for_step(step):
            self.timer.update_last_triggered_step(step)
            self.steps.append(step)


def driven(make_hooks, number, run=None):
    run = run or Run(global_step=0)
    with run.as_current():
        hooks = make_hooks()
    drive(Steps(run, number), hooks, run=run)
    return run.global_step


def dump_and_stop(folder):
    """Only rank 0 sees the files, which are in its own folder."""
    hvd_lib.init()
    own = Path(folder) / str(hvd_lib.rank())
    own.mkdir()
    if hvd_lib.rank() == 0:
        (own / "dump_100").touch()
        (own / "stop_200").touch()
    run = Run(global_step=0)
    run.add("variables", torch.nn.Linear(1, 1))

    def hooks():
        barrier = SyncTrainingBarrierSaverListener()
        saver = NoFirstSaveCheckpointSaverHook(own, save_steps=10**9, listeners=[barrier])
        return [SyncTrainingForceDumpHook(str(own), saver.timer, source=AFTERNOON), saver]

    step = driven(hooks, 1000, run)
    names = sorted(name for name in os.listdir(own) if name.endswith("manifest.json"))
    hvd_lib.shutdown()
    return step, names


def online(folder):
    """`ONLINE` appears in rank 0's folder before step 4 and goes before step 8."""
    hvd_lib.init()
    own = Path(folder) / str(hvd_lib.rank())
    own.mkdir()

    class Operator(Hook):
        def before_run(self, ctx):
            if ctx.run.global_step == 3 and hvd_lib.rank() == 0:
                (own / "ONLINE").touch()
            if ctx.run.global_step == 7 and hvd_lib.rank() == 0:
                (own / "ONLINE").unlink()

    from monolith.native_training.saver import SecondOrStepTimer

    timer = SecondOrStepTimer(every_steps=1)
    note = Note(timer)
    driven(lambda: [Operator(), SyncTrainingSaverControlHook(str(own), timer, 2), note], 10)
    hvd_lib.shutdown()
    return note.steps


def request_times(folder, limit, now):
    hvd_lib.init()
    own = Path(folder) / str(hvd_lib.rank())
    own.mkdir()
    run = Run(global_step=0)
    if hvd_lib.rank() == 0:
        run.add("req_time", lambda: torch.tensor([now - 1, now]))
        if limit is not None:
            (own / "limit_req_time").write_text(limit)

    from monolith.native_training.saver import SecondOrStepTimer

    timer = SecondOrStepTimer(every_steps=10**9)
    timer.disable()
    note = Note(timer)
    step = driven(lambda: [ReqTimeControlDumpHook(str(own), timer, 2), note], 6, run)
    hvd_lib.shutdown()
    return step, note.steps
