"""Staleness of lookups, in updates: with prefetch, with push, with both."""

import functools
import threading
import time

import pytest
import torch

from monolith.table import Table
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from monolith.train import Hook, Trainer, TrainSettings, hosting
from tests.native_training.queues.threads import LIMIT_SECONDS, until
from tests.train.tasks import Clicks, Counting, Raise, StopAfter, clicks, counted, state_of


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("push", [0, 1])
def test_a_lookup_misses_at_most_the_bound(prefetch, push):
    with Trainer(task := Counting(40), TrainSettings(prefetch=prefetch, push=push)) as trainer:
        figures = trainer.fit().figures
    missed = [step - seen for step, seen in enumerate(task.seen)]
    assert figures.staleness_bound == prefetch + push
    assert 0 <= max(missed) <= figures.staleness <= figures.staleness_bound
    assert trainer.run.global_step == 40


class Late(Counting):
    """A task whose model lets an update run only when the reader is as far ahead as allowed."""

    def attach(self, trainer):
        self._trainer, self._updates = trainer, threading.Semaphore(0)
        begin = trainer.optimizer.begin_step

        def begin_step():
            apply = begin()
            return lambda: self._updates.acquire(timeout=LIMIT_SECONDS) and apply()

        trainer.optimizer.begin_step = begin_step

    def loss(self, model, inputs, batch):
        reader, step = self._trainer._loop.reader, len(self.seen)
        left = len(self.batches) - 1 - step
        until(lambda: reader.num_ready == min(reader.capacity, left))
        is_pushed = self._trainer.settings.push
        # Without push, the update of this step; with push, of the step before, and the last.
        for _ in range((step > 0) + (left == 0) if is_pushed else 1):
            self._updates.release()
        return super().loss(model, inputs, batch)


@pytest.mark.parametrize(("prefetch", "push"), [(1, 0), (3, 0), (0, 1), (1, 1), (3, 1)])
def test_the_bound_is_reached(prefetch, push):
    with Trainer(task := Late(8), TrainSettings(prefetch=prefetch, push=push)) as trainer:
        task.attach(trainer)
        figures = trainer.fit().figures
    missed = [step - seen for step, seen in enumerate(task.seen)]
    assert max(missed) == figures.staleness == prefetch + push


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("push", [0, 1])
def test_recorded_updates_replayed_into_the_reference_give_the_same_bits(
    monkeypatch, prefetch, push
):
    records = {}

    def recorded(config, **options):
        record = records[config.name] = Record()
        return Table(config, record=record, **options)

    monkeypatch.setattr(hosting, "Table", recorded)
    settings = TrainSettings(prefetch=prefetch, push=push)
    with Trainer(Clicks(clicks(12)), settings, clock=lambda: 100) as trainer:
        trainer.fit()
        for name, table in trainer.features.tables.items():
            reference = ReferenceTable(table.config)
            records[name].replay(reference)
            keys = torch.arange(20)
            entry, wanted = table.lookup_entry(keys), reference.lookup_entry(keys)
            assert entry.present.any()
            for column, values in entry.rows.columns.items():
                assert torch.equal(values, wanted.rows.columns[column])


@pytest.mark.parametrize("push", [0, 1])
def test_push_applies_the_same_updates(push):
    with Trainer(task := Counting(5), TrainSettings(push=push)) as trainer:
        trainer.fit()
        assert trainer.features.tables["id"].lookup(torch.tensor([7])).item() == -5
    assert len(task.seen) == 5


class Labels(Counting):
    """A task that records the labels, which are the numbers of the batches."""

    def __init__(self, number=10):
        super().__init__(number)
        self.used = []

    def loss(self, model, inputs, batch):
        self.used.append(int(batch.label))
        return super().loss(model, inputs, batch)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_that_were_read_ahead_of_a_stop_are_the_first_of_the_next_run(prefetch, accumulate):
    task, batches = Labels(), iter(counted(10))
    with Trainer(task, TrainSettings(prefetch=prefetch, accumulate=accumulate)) as trainer:
        trainer.fit(batches, hooks=[StopAfter(2)])
        assert trainer.fit(batches).ended == "end of data"
    assert task.used == list(range(10))


def test_steps_bound_what_is_read():
    batches = iter(counted(10))
    with Trainer(Counting(), TrainSettings(steps=4, prefetch=3)) as trainer:
        trainer.fit(batches)
    assert [int(batch.label) for batch in batches] == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_data_that_the_trainer_has_opened_are_closed_by_it(prefetch):
    closed = []

    class Opened(Counting):
        def source(self, mode):
            return Data()

    class Data:
        def __iter__(self):
            try:
                yield from counted(10)
            finally:
                closed.append(True)

    with Trainer(Opened(), TrainSettings(steps=2, prefetch=prefetch)) as trainer:
        trainer.fit()
        assert closed == [True]


def failing(number):
    """Yield batches, then raise an error."""
    yield from counted(number)
    raise OSError("the disk is gone")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_of_the_source_fails_the_next_step_and_loses_nothing(prefetch):
    task = Labels()
    with Trainer(task, TrainSettings(prefetch=prefetch, accumulate=2)) as trainer:
        source = failing(5)
        with pytest.raises(OSError, match="the disk is gone"):
            trainer.fit(source)
        trainer.fit(source)
    assert task.used == list(range(5))
    assert not [thread for thread in threading.enumerate() if "ahead" in thread.name]


def test_an_error_of_a_hook_leaves_no_thread_and_no_batch_behind():
    task, batches = Labels(), iter(counted(10))
    with Trainer(task, TrainSettings(prefetch=2, push=1)) as trainer:
        with pytest.raises(KeyError):
            trainer.fit(batches, hooks=[Raise(3, KeyError("hook"))])
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if "ahead" in name or "push" in name]
        trainer.fit(batches)
        assert trainer.features.tables["id"].lookup(torch.tensor([7])).item() == -10
    assert task.used == list(range(10))


def test_an_error_of_an_update_on_its_thread_fails_the_next_step():
    with Trainer(task := Counting(5), TrainSettings(push=1)) as trainer:
        begin, calls = trainer.optimizer.begin_step, []

        def begin_step():
            apply = begin()
            calls.append(apply)
            return apply if len(calls) < 3 else functools.partial(fail, "no memory")

        trainer.optimizer.begin_step = begin_step
        with pytest.raises(MemoryError, match="no memory"):
            trainer.fit()
        assert (len(task.seen), trainer.run.global_step) == (4, 3)
        assert trainer.features.tables["id"].lookup(torch.tensor([7])).item() == -2


def fail(text):
    raise MemoryError(text)


def test_an_evaluation_sees_all_updates():
    class Evaluated(Counting):
        def source(self, mode):
            return self.batches if mode == "train" else self.batches[:1]

    settings = TrainSettings(prefetch=2, push=1, eval_every=2)
    with Trainer(Evaluated(6), settings) as trainer:
        result = trainer.fit()
    assert {step: figures["loss"] for step, figures in result.evaluations.items()} == {
        2: -2.0, 4: -4.0, 6: -6.0
    }  # fmt: skip


def test_an_eviction_sees_all_updates():
    class Evict(Hook):
        def after_run(self, ctx, results):
            trainer.evict()
            seen.append(len(applied))

    def begin_step():
        apply = begin()
        return lambda: (time.sleep(0.02), apply(), applied.append(apply))

    applied, seen = [], []
    with Trainer(Counting(3), TrainSettings(push=1)) as trainer:
        begin, trainer.optimizer.begin_step = trainer.optimizer.begin_step, begin_step
        trainer.fit(hooks=[Evict()])
    assert seen == [1, 2, 3]


def test_a_run_with_prefetch_trains_the_same_batches():
    with Trainer(task := Clicks(), TrainSettings(prefetch=2, push=1)) as trainer:
        trainer.fit()
        rows = state_of(trainer)[0]
    with Trainer(task) as trainer:
        trainer.fit()
        assert [row[0] for row in state_of(trainer)[0]["user"]] == [row[0] for row in rows["user"]]
