"""Checkpoints of ranks: one cut of all, which any number of ranks and a local run restore."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from monolith import data
from monolith.checkpoint import find
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.cluster.ranks.ranks_engine import RanksEngine
from monolith.data import Batch
from monolith.errors import InvalidArgumentError
from monolith.nn import Feature
from monolith.ops import Ragged
from monolith.table import Zeros
from monolith.table.optimizers import SGD
from monolith.train import Hook, Trainer, TrainSettings
from monolith.train.driver import Run
from monolith.train.ranks import rank_sync
from monolith.train.roles.worker import run_worker
from monolith.train.run_state import RANK_STATES, RunState, StepClock, random_states
from tests.cluster.job.running_job import RunningJob
from tests.cluster.ranks.rank_threads import run_ranks
from tests.train.ranks.rank_tasks import NOW, fit_rank, largest_difference, task_of, values_of

NUM = 480


def columns():
    draw = torch.Generator().manual_seed(3)
    return {
        "user": torch.arange(NUM).tolist(),
        "item": torch.randint(0, 60, (NUM,), generator=draw).tolist(),
        "x": torch.randn(NUM, generator=draw).tolist(),
        "y": torch.randn(NUM, generator=draw).tolist(),
        "label": torch.randint(0, 2, (NUM,), generator=draw).float().tolist(),
    }


def pipeline():
    return data.arrow_table(columns()).batch(8)


def task():
    return task_of([], source=lambda self, mode: pipeline())


class Users(Hook):
    """Collects which samples are trained."""

    def __init__(self, seen):
        self._seen = seen

    def after_run(self, ctx, results):
        for part in results.value.parts:
            self._seen += part.batch.features["user"].values.tolist()


def run(num_ranks, folder, steps, seen, *, strategy="div", **options):
    """Train some steps on ranks, from the newest checkpoint if there is one."""
    settings = TrainSettings(steps=steps, checkpoint_dir=str(folder), save_every=4, **options)

    def before(trainer):
        prefix = trainer.sync.group.control.share(
            getattr(find(str(folder)), "prefix", None) if trainer.sync.is_chief else None
        )
        if prefix is not None:
            trainer.restore(prefix)

    def body(group):
        changed = TrainSettings(**{**vars(settings), "steps": None}) if steps is None else settings
        return fit_rank(group, task(), changed, [Users(seen)], before, strategy=strategy)

    return run_ranks(num_ranks, body)


def run_alone(folder, seen, steps=None):
    settings = TrainSettings(steps=steps, checkpoint_dir=str(folder))
    with Trainer(task(), settings, hooks=[Users(seen)], clock=lambda: NOW) as trainer:
        if find(str(folder)) is not None:
            trainer.restore(str(folder))
        result = trainer.fit()
        return result, *values_of(trainer)


def test_other_numbers_of_ranks_and_a_local_run_go_on_and_train_each_sample_once(tmp_path):
    seen = []
    run(2, tmp_path, 6, seen)
    assert len(seen) == 2 * 6 * 8
    before = run(1, tmp_path, 14, seen)  # steps count from the first start
    checkpoint = find(str(tmp_path))
    assert checkpoint.step == 14
    run(4, tmp_path, 19, seen)
    result, *_ = run_alone(tmp_path, seen)
    assert result.ended == "end of data"
    assert sorted(seen) == list(range(NUM))
    assert before[0][0].num_steps == 8


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_run_that_goes_on_equals_one_that_was_not_stopped(tmp_path, prefetch):
    seen, again = [], []
    whole = run(2, tmp_path / "whole", 12, seen, prefetch=0)
    run(2, tmp_path / "parts", 5, again, prefetch=prefetch)
    parts = run(2, tmp_path / "parts", 12, again, prefetch=0)
    assert sorted(seen) == sorted(again)
    if not prefetch:
        assert largest_difference(parts[0][1], whole[0][1]) == 0
        assert largest_difference(parts[0][2], whole[0][2]) == 0


def test_a_checkpoint_has_the_random_states_of_ranks_1_and_further(tmp_path, monkeypatch):
    place = threading.local()
    monkeypatch.setattr(rank_sync, "random_states", lambda: {"torch": place.rank})

    def body(group):
        place.rank = group.rank
        with RankTables(group) as ranks, Trainer(task(), ranks=ranks) as trainer:
            trainer.save(tmp_path)
            return trainer.sync.is_chief and trainer.sync._saved()[RANK_STATES]

    assert run_ranks(3, body) == [[{"torch": 1}, {"torch": 2}], False, False]


@pytest.mark.parametrize(("rank", "seed"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_a_rank_takes_its_own_random_state_and_a_new_one_that_of_rank_0(rank, seed):
    states, numbers = [], []
    with torch.random.fork_rng():
        for number in range(3):
            torch.manual_seed(number)
            states.append(random_states())
            numbers.append(torch.rand(1).item())
        state = RunState(Run(global_step=0), StepClock(lambda: NOW), {})
        saved = {**state.state_dict(), **states[0], RANK_STATES: states[1:]}
        state.rank = rank
        state.load_state_dict(saved)
        assert torch.rand(1).item() == numbers[seed]


def test_a_checkpoint_of_ranks_has_the_rows_of_all(tmp_path):
    found = run(2, tmp_path, 6, [])
    with Trainer(task(), TrainSettings(), clock=lambda: NOW) as trainer:
        trainer.restore(str(tmp_path))
        parameters, rows = values_of(trainer)
    assert largest_difference(parameters, found[0][1]) == 0
    assert largest_difference(rows, found[0][2]) == 0


def test_a_run_goes_on_with_another_partition_strategy(tmp_path):
    seen, again = [], []
    whole = run(2, tmp_path / "whole", 8, seen, prefetch=0, strategy="div")
    run(2, tmp_path / "parts", 5, again, prefetch=0, strategy="mod")
    parts = run(2, tmp_path / "parts", 8, again, prefetch=0, strategy="div")
    assert sorted(seen) == sorted(again)
    assert largest_difference(parts[0][1], whole[0][1]) == 0
    assert largest_difference(parts[0][2], whole[0][2]) == 0


def test_ranks_with_different_partition_strategies_are_refused():
    def body(group):
        strategy = ("div", "mod")[group.rank]
        return fit_rank(group, task(), None, strategy=strategy)

    text = "got 'partition strategy div' in rank 0 and 'partition strategy mod' in rank 1"
    with pytest.raises(InvalidArgumentError, match=text):
        run_ranks(2, body)


def test_a_local_checkpoint_goes_on_with_ranks(tmp_path):
    seen = []
    run_alone(tmp_path, seen, steps=7)
    found = run(3, tmp_path, None, seen)
    assert sorted(seen) == list(range(NUM))
    assert found[0][0].ended == "end of data"


def test_all_ranks_save_together_when_a_hook_asks_for_it(tmp_path):
    prefixes = []

    class SaveAt(Hook):
        def __init__(self, trainer):
            self._trainer = trainer

        def after_run(self, ctx, results):
            if ctx.run.global_step == 3:
                prefixes.append(self._trainer.save(tmp_path))

    def body(group):
        settings = TrainSettings(steps=4)
        with (
            RankTables(group) as ranks,
            Trainer(task(), settings, clock=lambda: NOW, ranks=ranks) as trainer,
        ):
            trainer.fit(hooks=[SaveAt(trainer)])

    run_ranks(2, body)
    assert prefixes == [f"{tmp_path}/model.ckpt-3"] * 2
    assert find(str(tmp_path)).step == 3


def test_a_save_has_the_updates_that_ranks_make_on_a_thread(tmp_path, monkeypatch):
    """Rank 1 is late with its update when rank 0 saves."""
    check = RanksEngine._refuse_not_finite  # between the exchange and the update of the rows

    def late_check(self, heads):
        if self._rank == 1:
            time.sleep(0.3)
        check(self, heads)

    monkeypatch.setattr(RanksEngine, "_refuse_not_finite", late_check)
    changes = {
        "features": [Feature("user", dim=1, optimizer=SGD(1.0), initializer=Zeros())],
        "dense": (),
        "build": lambda self: torch.nn.Identity(),
        "optimizer": lambda self, model: None,
        "loss": lambda self, model, inputs, batch: (
            inputs.pooled["user"].mean(),
            inputs.pooled["user"][:, 0],
        ),
    }
    ids = {"user": Ragged.from_lists([[n] for n in range(32)])}
    batches = [Batch(ids, labels={"label": torch.zeros(32)})] * 8
    settings = TrainSettings(push=1, checkpoint_dir=str(tmp_path), save_every=2, full_every=1)
    run_ranks(2, lambda group: fit_rank(group, task_of(batches, **changes), settings))
    with Trainer(task_of([], **changes), clock=lambda: NOW) as trainer:
        trainer.restore(f"{tmp_path}/model.ckpt-2")
        _, rows = values_of(trainer)
    assert {float(row) for row in rows.values()} == {-2 / 32}


@pytest.mark.parametrize("steps", [4, None])
def test_a_save_outside_of_a_fit_keeps_what_is_left(tmp_path, steps):
    """After a restore, before a fit and after one."""
    seen = []
    run(2, tmp_path / "first", 6, seen)

    def body(group):
        settings = TrainSettings(steps=steps)
        with (
            RankTables(group) as ranks,
            Trainer(task(), settings, clock=lambda: NOW, ranks=ranks) as trainer,
        ):
            if steps is not None:
                trainer.fit()
            trainer.restore(str(tmp_path / "first"))
            trainer.save(tmp_path / "second")

    run_ranks(2, body)
    run(2, tmp_path / "second", None, seen)
    assert sorted(seen) == list(range(NUM))


def test_a_save_before_any_step_has_the_whole_source(tmp_path):
    def body(group):
        with RankTables(group) as ranks, Trainer(task(), ranks=ranks) as trainer:
            trainer.save(tmp_path)

    run_ranks(2, body)
    seen = []
    run(2, tmp_path, None, seen)
    assert sorted(seen) == list(range(NUM))


def test_ranks_with_other_data_are_refused(tmp_path):
    for rank in range(2):
        pq.write_table(pa.table(columns()), tmp_path / f"{rank}.parquet")

    def body(group):
        def source(self, mode):
            return data.parquet(str(tmp_path / f"{group.rank}.parquet")).batch(8)

        fit_rank(group, task_of([], source=source))

    with pytest.raises(InvalidArgumentError, match=r"got '.*stream.*' in rank 0 and '.*stream"):
        run_ranks(2, body)


@pytest.fixture
def start():
    """(number of servers, of workers) -> servers that know the task; they end with the test."""
    started = []

    def start(num_servers, num_workers=1):
        make = {"make_model": task().build, "make_optimizer": task().optimizer}
        started.append(RunningJob(num_servers, num_workers, **make))
        return started[-1]

    yield start
    for running in started:
        running.close()


def run_job(running, folder, seen, *, steps=None, checkpoint=None, began=None, source=None):
    """Train as the workers of a job, each on a thread; the values of all tables before the end."""
    settings = TrainSettings(steps=steps, checkpoint_dir=str(folder), save_every=0)
    values = []

    def work(worker):
        options = {"checkpoint": checkpoint, "began": began} if worker == 0 else {}
        run_worker(
            task(),
            settings,
            running.servers(worker),
            source=source,
            hooks=[Users(seen)],
            then=lambda trainer: values.append(values_of(trainer)),
            **options,
        )

    with ThreadPoolExecutor(running.num_workers) as pool:
        for future in [pool.submit(work, worker) for worker in range(running.num_workers)]:
            future.result(60)
    return values[0]


@pytest.mark.dist
@pytest.mark.parametrize("num_workers", [1, 2])
def test_ranks_go_on_with_a_job(start, tmp_path, caplog, num_workers):
    seen, restored = [], []
    parameters, rows = run_job(start(2, num_workers), tmp_path, seen, steps=10)
    num_steps = find(str(tmp_path)).step

    def body(group):
        def restore(trainer):
            trainer.restore(str(tmp_path))
            restored.append((trainer.state.step, *values_of(trainer)))
            group.control.gather(None)

        return fit_rank(group, task(), None, [Users(seen)], restore)

    found = run_ranks(2, body)
    for step, *values in restored:
        assert step == num_steps
        assert largest_difference(values[0], parameters) == 0
        assert largest_difference(values[1], rows) == 0
    assert found[0][0].ended == "end of data"
    assert sorted(seen) == list(range(NUM))
    assert "once more" not in caplog.text


@pytest.mark.dist
@pytest.mark.parametrize(("num_ranks", "num_workers"), [(2, 1), (2, 2), (1, 2)])
def test_a_job_goes_on_with_ranks(start, tmp_path, caplog, num_ranks, num_workers):
    seen, restored = [], []
    found = run(num_ranks, tmp_path, 6, seen)

    def note(trainer):
        restored.append((trainer.state.step, *values_of(trainer)))

    checkpoint = find(str(tmp_path))
    run_job(start(2, num_workers), tmp_path, seen, checkpoint=checkpoint, began=note)
    ((step, parameters, rows),) = restored
    assert step == 6
    assert largest_difference(parameters, found[0][1]) == 0
    assert largest_difference(rows, found[0][2]) == 0
    assert sorted(seen) == list(range(NUM))
    assert find(str(tmp_path)).step == 6 + (NUM - num_ranks * 6 * 8) // 8
    assert "once more" not in caplog.text


@pytest.mark.dist
def test_one_process_and_two_workers_go_on_with_each_other(start, tmp_path):
    seen = []
    run_alone(tmp_path, seen, steps=7)
    run_job(start(1, 2), tmp_path, seen, steps=10, checkpoint=find(str(tmp_path)))
    assert len(seen) < NUM
    run_alone(tmp_path, seen)
    assert sorted(seen) == list(range(NUM))


@pytest.mark.dist
def test_a_job_says_how_many_samples_it_reads_again(start, tmp_path, caplog):
    """Two workers cannot divide the rest of a source that has no `resume`."""
    seen, again = [], []
    run_alone(tmp_path, seen, steps=7)
    checkpoint, batches = find(str(tmp_path)), list(pipeline())
    run_job(start(1, 2), tmp_path, again, checkpoint=checkpoint, source=batches)
    assert sorted(again) == list(range(NUM))
    assert len(seen) == 56
    assert "and 56 samples that were trained before are trained once more" in caplog.text
