"""Checkpoints of ranks: one cut of all, which any number of ranks and a local run restore."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from monolith import data
from monolith.checkpoint import find
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.errors import InvalidArgumentError
from monolith.train import Hook, Trainer, TrainSettings
from monolith.train.roles.worker import run_worker
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
