"""Ends, saves and failures are those of all ranks, in one step."""

import threading

import pytest
import torch

from monolith.cluster.ranks.rank_group import RankOptions
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.cluster.ranks.ranks_engine import RanksEngine
from monolith.errors import (
    AbortedError,
    InvalidArgumentError,
    NonFiniteLossError,
    OutOfRangeError,
    UnavailableError,
)
from monolith.train import Hook, Mode, Trainer, TrainSettings
from tests.cluster.ranks.rank_threads import run_ranks
from tests.train.ranks.rank_tasks import (
    RankTask,
    fit_alone,
    fit_rank,
    largest_difference,
    one_batch,
    task_of,
)


@pytest.mark.req("TS-CPUSYNC-T7")
@pytest.mark.parametrize("num_batches", [[3, 5, 0]])
def test_ranks_with_unequal_data_end_together_and_train_every_batch(num_batches, monkeypatch):
    lists = [[one_batch(100 * r + i) for i in range(n)] for r, n in enumerate(num_batches)]
    monkeypatch.setattr(
        "monolith.train.ranks.rank_source.RankSource.own_names",
        lambda self, epoch, rank=None: [str(self._rank if rank is None else rank)],
    )
    monkeypatch.setattr(
        "monolith.train.ranks.rank_source.RankSource.open",
        lambda self, name, epoch, position: Plain(lists[int(name)]),
    )
    trained = [[] for _ in lists]

    class Seen(Hook):
        def __init__(self, rank):
            self._rank = rank

        def after_run(self, ctx, results):
            trained[self._rank] += [len(part.batch) for part in results.value.parts]

    task = task_of([one_batch(0)])
    found = run_ranks(3, lambda group: fit_rank(group, task, hooks=[Seen(group.rank)]))
    assert [len(batches) for batches in trained] == num_batches
    assert [result.num_steps for result, _, _ in found] == [5, 5, 5]
    assert [result.ended for result, _, _ in found] == ["end of data"] * 3
    for _, parameters, _ in found:
        assert all(torch.equal(parameters[n], found[0][1][n]) for n in parameters)


class Plain:
    def __init__(self, batches):
        self._batches = iter(batches)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._batches)

    def state_dict(self):
        return {}

    def close(self):
        pass


class StopAt(Hook):
    def __init__(self, step):
        self._step = step

    def after_run(self, ctx, results):
        if ctx.run.global_step == self._step:
            ctx.request_stop()


@pytest.mark.parametrize(("prefetch", "push"), [(0, 0), (2, 1)])
def test_a_stop_of_one_rank_ends_all_after_the_next_step(prefetch, push):
    task = task_of([one_batch(i) for i in range(40)])
    settings = TrainSettings(prefetch=prefetch, push=push)

    def body(group):
        hooks = [StopAt(3)] if group.rank == 1 else []
        return fit_rank(group, task, settings, hooks)

    found = run_ranks(2, body)
    assert [(result.num_steps, result.ended) for result, _, _ in found] == [(4, "stopped")] * 2


def test_steps_end_all_ranks():
    task = task_of([one_batch(i) for i in range(40)])
    found = run_ranks(2, lambda group: fit_rank(group, task, TrainSettings(steps=5, prefetch=1)))
    assert [(result.num_steps, result.ended) for result, _, _ in found] == [(5, "steps")] * 2


def test_a_loss_that_is_not_finite_ends_all_ranks_and_names_the_rank(tmp_path):
    batches = [one_batch(i) for i in range(10)]
    batches[5].dense["x"].fill_(float("nan"))  # the third batch of rank 1
    errors = {}

    def body(group):
        settings = TrainSettings(prefetch=1, keep_dir=str(tmp_path / str(group.rank)))
        try:
            fit_rank(group, task_of(batches), settings)
        except Exception as error:
            errors[group.rank] = error
            raise

    with pytest.raises(Exception, match=r"rank 1|finite"):
        run_ranks(2, body)
    assert isinstance(errors[1], NonFiniteLossError)
    assert isinstance(errors[0], UnavailableError)
    assert "rank 1 failed: NonFiniteLossError" in str(errors[0])
    assert [path.name for path in tmp_path.glob("*/*")] == ["non_finite_loss_2.parquet"]


def test_ranks_with_other_settings_are_refused():
    task = task_of([one_batch(0)])

    def body(group):
        return fit_rank(group, task, TrainSettings(clip_norm=1.0 + group.rank))

    text = r"got 'clip_norm 1.0' in rank 0 and 'clip_norm 2.0' in rank 1"
    with pytest.raises(InvalidArgumentError, match=text):
        run_ranks(2, body)


def test_prefetch_and_push_train_every_batch():
    batches = [one_batch(i) for i in range(12)]
    settings = TrainSettings(prefetch=1, push=1)
    found = run_ranks(2, lambda group: fit_rank(group, task_of(batches), settings))
    assert [result.num_samples for result, _, _ in found] == [96, 96]
    assert largest_difference(found[0][1], found[1][1]) == 0
    assert found[0][0].figures.staleness <= settings.staleness_bound


def test_a_push_runs_during_the_forward_of_the_next_step(monkeypatch):
    """The update of a step waits here for the forward after it."""
    step, late = RanksEngine.step, []
    forwards = [threading.Semaphore(0), threading.Semaphore(0)]

    def waiting_step(self, *arguments):
        if not forwards[self._rank].acquire(timeout=10):
            late.append(self._rank)
        return step(self, *arguments)

    monkeypatch.setattr(RanksEngine, "step", waiting_step)

    def body(group):
        class Told(RankTask):
            batches = [one_batch(i) for i in range(8)]

            def loss(self, model, inputs, batch):
                self.num_forwards = getattr(self, "num_forwards", 0) + 1
                for _ in range(2 if self.num_forwards == 4 else self.num_forwards > 1):
                    forwards[group.rank].release()  # the update after the last one never waits
                return super().loss(model, inputs, batch)

        fit_rank(group, Told(), TrainSettings(push=1))

    run_ranks(2, body)
    assert not late


def test_figures_are_those_of_all_ranks():
    batches = [one_batch(i) for i in range(8)]
    settings = TrainSettings(push=0, log_every=100)
    alone, *_ = fit_alone(task_of(batches[:2] * 2))
    found = run_ranks(2, lambda group: fit_rank(group, task_of(batches), settings))
    assert alone.figures.num_samples == 32
    assert [result.figures.num_samples for result, _, _ in found] == [64, 64]
    assert found[0][0].figures.loss == found[1][0].figures.loss
    assert threading.active_count() < 50


def test_removals_by_the_hour_begin_at_the_time_of_rank_0():
    """The clocks of the ranks are on both sides of a full hour."""
    task = task_of([one_batch(i) for i in range(8)], evict_every_hours={"user": 1})

    def body(group):
        def clock():
            return 3600 * 500_000 - group.rank

        with (
            RankTables(group) as ranks,
            Trainer(task, TrainSettings(), clock=clock, ranks=ranks) as trainer,
        ):
            return trainer.fit().figures

    first, second = run_ranks(2, body)
    assert first.num_samples == second.num_samples == 64


def test_an_evaluation_that_is_aborted_in_one_rank_ends_all():
    """It begins anew in one process; a rank would meet other collectives of the others."""
    errors = {}

    def body(group):
        def held_out():
            if group.rank == 1 and not errors.get("raised"):
                errors["raised"] = True
                raise AbortedError("gone for a moment")
            yield one_batch(90)

        class HeldOut:
            def __iter__(self):
                return held_out()

        def source(self, mode):
            return [one_batch(i) for i in range(8)] if mode == Mode.TRAIN else HeldOut()

        try:
            fit_rank(group, task_of([], source=source), TrainSettings(eval_every=2))
        except Exception as error:
            errors[group.rank] = error
            raise

    with pytest.raises((AbortedError, UnavailableError)):
        run_ranks(2, body)
    assert isinstance(errors[1], AbortedError)
    assert "rank 1 failed: AbortedError: gone for a moment" in str(errors[0])


def test_a_source_that_ends_by_an_error_of_the_end_ends_with_all_ranks():
    class Source:
        def __iter__(self):
            yield from [one_batch(i) for i in range(7)]
            raise OutOfRangeError("end")

    found = run_ranks(2, lambda group: fit_rank(group, task_of(Source())))
    assert [result.num_samples for result, *_ in found] == [56, 56]
    assert [result.ended for result, *_ in found] == ["end of data"] * 2


def optimizer_of_rank(rank):
    return lambda self, model: torch.optim.SGD(model.parameters(), lr=1.0 + rank)


@pytest.mark.parametrize(
    ("options", "changes", "text"),
    [
        (lambda rank: {"transfer": ["float32", "float16"][rank]}, lambda rank: {}, "float16"),
        (lambda rank: {}, lambda rank: {"optimizer": optimizer_of_rank(rank)}, "1.0' in rank 0"),
    ],
    ids=["transfer", "rates"],
)
def test_options_that_differ_are_refused(options, changes, text):
    def body(group):
        task = task_of([one_batch(0)], **changes(group.rank))
        return fit_rank(group, task, **options(group.rank))

    with pytest.raises(InvalidArgumentError, match=f"the same task and settings.*{text}"):
        run_ranks(2, body)


def test_the_source_of_a_rank_may_take_as_long_as_ranks_wait():
    found = []

    def body(group):
        class Look(Hook):
            def after_run(self, ctx, results):
                found.append(trainer._loop.reader.timeout_seconds)

        with (
            RankTables(group) as ranks,
            Trainer(task_of([one_batch(0)]), hooks=[Look()], ranks=ranks) as trainer,
        ):
            trainer.fit()

    run_ranks(1, body, RankOptions(wait_seconds=900))
    assert found == [1800]
