"""Runs on streams: they wait, end, stand and save while nothing comes."""

import json
import signal
import threading
import time

import pytest
import torch

from monolith.checkpoint import existing_checkpoints
from monolith.data import Columns, stream
from monolith.nn import Feature
from monolith.table import Zeros
from monolith.table.optimizers import SGD
from monolith.train import Hook, Task, Trainer, TrainSettings
from tests.data.stream.conftest import broker  # noqa: F401  (a fixture)
from tests.data.stream.folders import add
from tests.time_limits import AT_ONCE, at_once
from tests.train.controlled.controlled_run import ControlledRun

MODES = [{}, {"prefetch": 2, "push": 1}]


class Count(Task):
    """A task whose rows are minus the number of times that their users were trained."""

    features = (Feature("user", dim=1, optimizer=SGD(1.0), initializer=Zeros()),)
    label = ()

    def __init__(self, pipeline):
        super().__init__()
        self.pipeline = pipeline

    def source(self, mode):
        return self.pipeline.batch(4, seconds=0.01)

    def build(self):
        return torch.nn.Identity()

    def metrics(self):
        return {}

    def loss(self, model, inputs, batch):
        value = inputs.pooled["user"].squeeze(1)
        return value.sum(), value


class After(Hook):
    """Calls a function from another thread some time after a step, in which the run waits."""

    def __init__(self, num_samples, call):
        self._left, self._call = num_samples, call

    def after_run(self, ctx, results):
        before, self._left = self._left, self._left - len(results.value.parts[0].batch)
        if before > 0 >= self._left:
            threading.Timer(0.2, self._call).start()


def interrupt():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def count_in(trainer):
    (chunk,) = trainer.features.tables["user"].export()
    (values,) = chunk.columns.values()
    return dict(zip(chunk.keys.tolist(), (-values.squeeze(1)).tolist(), strict=True))


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("settings", MODES)
def test_ctrl_c_ends_a_run_that_waits_for_a_stream(tmp_path, settings, depth):
    add(tmp_path, "a.jsonl", range(6))
    pipeline = stream.tail(tmp_path, columns=Columns(["user"]))
    task = Count(pipeline.prefetch(depth) if depth else pipeline)
    with at_once(), Trainer(task, TrainSettings(**settings)) as trainer:
        result = trainer.fit(hooks=[After(6, interrupt)])
        assert result.ended == "interrupted"
        assert count_in(trainer) == dict.fromkeys(range(6), 1.0)


@pytest.mark.parametrize("settings", MODES)
def test_the_next_run_goes_on_with_the_same_iteration(tmp_path, settings):
    add(tmp_path, "a.jsonl", range(6))
    task = Count(stream.tail(tmp_path, columns=Columns(["user"])))
    with at_once(), Trainer(task, TrainSettings(**settings)) as trainer:
        with iter(task.source("train")) as batches:
            trainer.fit(batches, hooks=[After(6, interrupt)])
            add(tmp_path, "a.jsonl", range(6, 9))
            trainer.fit(batches, hooks=[After(3, interrupt)])
        assert count_in(trainer) == dict.fromkeys(range(9), 1.0)


@pytest.mark.parametrize("settings", MODES)
def test_a_thread_that_fails_ends_a_run_that_waits(tmp_path, settings):
    class Failing(Hook):
        def after_create_session(self, run, coordinator):
            def fail():
                time.sleep(0.2)
                raise OSError("a thread has failed")

            coordinator.start(fail, name="failing")

    task = Count(stream.tail(tmp_path, columns=Columns(["user"])))
    with (
        at_once(),
        Trainer(task, TrainSettings(**settings)) as trainer,
        pytest.raises(OSError, match="a thread has failed"),
    ):
        trainer.fit(hooks=[Failing()])


@pytest.mark.parametrize("settings", MODES)
def test_a_run_that_waits_stands_and_saves_when_it_is_told(tmp_path, settings):
    folder = tmp_path / "data"
    folder.mkdir()
    with ControlledRun(tmp_path / "run", **settings) as run:
        run.task.source = Count(
            stream.tail(folder, columns=Columns(["one"], labels=["label"]))
        ).source
        run.start()
        (folder / "a.jsonl").write_text('{"one": 7, "label": 0}\n')
        end = time.monotonic() + AT_ONCE
        while run.client.status().step == 0:
            assert time.monotonic() < end
            time.sleep(0.01)
        saved = run.client.save()
        assert saved.step == run.client.status().step
        run.stand()
        run.client.resume()
        (folder / "a.jsonl").write_text('{"one": 7, "label": 0}\n{"one": 7, "label": 0}\n')
        while run.client.status().step == saved.step:
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.mark.dist
@pytest.mark.req("RT-T1")
@pytest.mark.parametrize("settings", MODES)
def test_offsets_are_a_part_of_the_checkpoint(tmp_path, broker, settings):  # noqa: F811
    """Messages after the last save are trained again by a run that goes on, and no others."""
    with at_once():
        topic = broker.topic(2)
        for user in range(20):
            broker.send(topic, json.dumps({"user": user}), partition=user % 2)
        options = TrainSettings(checkpoint_dir=str(tmp_path), save_every=2, keep=0, **settings)
        for number in range(2):
            task = Count(stream.kafka(broker.servers, topic, columns=Columns(["user"])))
            with Trainer(task, options) as trainer:
                if number:
                    trainer.restore(existing_checkpoints(tmp_path)[0])
                num_left = 20 - (sum(count_in(trainer).values()) if number else 0)
                result = trainer.fit(hooks=[After(num_left, interrupt)])
                assert result.ended == "interrupted"
                assert count_in(trainer) == dict.fromkeys(range(20), 1.0)
