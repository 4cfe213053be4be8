"""Evaluations, narrow transfers, and tasks of other kinds on ranks."""

import dataclasses

import pytest
import torch

from monolith.cluster.ranks.rank_tables import RankTables
from monolith.nn import Feature
from monolith.table import Expiry
from monolith.table.optimizers import SGD, Adagrad
from monolith.train import EarlyStop, Mode, Trainer, TrainSettings
from tests.cluster.ranks.rank_threads import run_ranks
from tests.train.ranks.rank_tasks import (
    NOW,
    RankTask,
    fit_alone,
    fit_rank,
    joined,
    largest_difference,
    one_batch,
    task_of,
)

TRAIN, HELD_OUT = [one_batch(seed) for seed in range(12)], [one_batch(90 + i) for i in range(5)]
WHOLE = [joined(TRAIN[i : i + 2]) for i in range(0, 12, 2)]


def with_held_out(train):
    def source(self, mode):
        return train if mode == Mode.TRAIN else HELD_OUT

    return task_of([], source=source)


def test_an_evaluation_is_that_of_one_process_in_all_ranks():
    settings = TrainSettings(eval_every=3)
    alone, *_ = fit_alone(with_held_out(WHOLE), settings)
    for result, *_ in run_ranks(2, lambda group: fit_rank(group, with_held_out(TRAIN), settings)):
        assert list(result.evaluations) == [3, 6]
        for step, figures in alone.evaluations.items():
            assert result.evaluations[step] == pytest.approx(figures, abs=1e-6)


def test_an_early_stop_ends_all_ranks_at_once():
    stop = EarlyStop("loss", patience=1, is_larger_better=True)
    settings = TrainSettings(eval_every=1, early_stop=stop)
    found = run_ranks(2, lambda group: fit_rank(group, with_held_out(TRAIN), settings))
    assert [result.ended for result, *_ in found] == ["early stop"] * 2
    assert found[0][0].num_steps == found[1][0].num_steps < 6


@pytest.mark.parametrize(("transfer", "bound"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_a_narrow_exchange_stays_within_its_error(transfer, bound):
    _, parameters, rows = fit_alone(task_of(WHOLE))
    found = run_ranks(2, lambda group: fit_rank(group, task_of(TRAIN), transfer=transfer))
    for _, ours, our_rows in found:
        assert 0 < largest_difference(our_rows, rows) < bound
        assert largest_difference(ours, parameters) < bound


def test_a_task_without_features_trains_on_ranks():
    changes = {"features": (), "build": lambda self: torch.nn.Linear(2, 1)}
    found = run_ranks(2, lambda group: fit_rank(group, task_of(TRAIN, **changes)))
    assert [result.num_steps for result, *_ in found] == [6, 6]
    assert largest_difference(found[0][1], found[1][1]) == 0


def test_buffers_are_those_of_rank_0_at_the_end():
    class Normed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.last = torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 1)

        def forward(self, x):
            return self.last(self.norm(x))

    def body(group):
        task = task_of(TRAIN, build=lambda self: Normed())
        with (
            RankTables(group) as ranks,
            Trainer(task, TrainSettings(), clock=lambda: NOW, ranks=ranks) as trainer,
        ):
            trainer.fit()
            return {n: b.clone().float() for n, b in trainer.model.named_buffers()}

    first, second = run_ranks(2, body)
    assert largest_difference(first, second) == 0


def test_expired_rows_go_in_all_ranks_after_the_same_step():
    features = [
        Feature("user", dim=3, optimizer=SGD(0.1), expiry=Expiry(1)),
        Feature("item", dim=4, optimizer=SGD(0.1)),
    ]
    times = [torch.full((8,), NOW + 90_000 * (i // 8)) for i in range(12)]
    batches = [dataclasses.replace(b, time=t) for b, t in zip(TRAIN, times, strict=True)]
    settings = TrainSettings(evict_every=5)

    def clock():
        return NOW + 200_000

    def body(group):
        with (
            RankTables(group) as ranks,
            Trainer(task_of(batches, features=features), settings, clock=clock, ranks=ranks) as t,
        ):
            t.fit()
            group.control.gather(None)
            return t.features.pending.engine.stats()["user"]["num_evicted"]

    first, second = run_ranks(2, body)
    assert first == second > 0


def test_bytes_are_counted():
    def body(group):
        with (
            RankTables(group) as ranks,
            Trainer(task_of(TRAIN), TrainSettings(), clock=lambda: NOW, ranks=ranks) as trainer,
        ):
            trainer.fit()
            return trainer.sync.counts

    for counts in run_ranks(2, body):
        assert min(counts.key_bytes, counts.row_bytes, counts.gradient_bytes) > 0
        assert counts.num_bytes > counts.row_bytes + counts.gradient_bytes


def test_a_task_named_task_sees_the_norm_of_all_ranks():
    norms = {0: [], 1: []}

    def body(group):
        class Task(RankTask):
            batches = TRAIN

            def change_gradients(self, optimizer, step):
                norms[group.rank].append(optimizer.queues[0].norm)

        Task.change_gradients.__qualname__ = "Task.change_gradients"  # as of a class of a module
        fit_rank(group, Task())

    run_ranks(2, body)
    assert norms[0] == norms[1]
    assert len(set(norms[0])) == 6


def test_schedules_of_processes_are_equal_by_their_names():
    def body(group):
        schedule = Adagrad(lambda step: 0.1)  # each rank has a function of its own
        features = [Feature("user", dim=3, optimizer=schedule), RankTask.features[1]]
        return fit_rank(group, task_of(TRAIN, features=features))

    assert [result.num_steps for result, *_ in run_ranks(2, body)] == [6, 6]


def test_a_lookup_may_begin_while_a_step_forgets_its_keys():
    class Key(int):
        def __le__(self, other):
            kept.setdefault(other + 100, None)  # as the thread of lookups does
            return int(self) <= other

    class Kept(dict):
        def __setitem__(self, number, keys):
            super().__setitem__(Key(number), keys)

    kept = Kept()

    def use_kept(trainer):
        trainer.sync.engine._kept = kept

    result, *_ = run_ranks(1, lambda group: fit_rank(group, task_of(TRAIN), before=use_kept))[0]
    assert result.num_steps == 12
