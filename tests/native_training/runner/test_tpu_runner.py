import logging
import shutil
from datetime import datetime, timezone

import pytest
import torch

from monolith import tpu_runner
from monolith.checkpoint import find, load
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.native_training.model import FFMParams
from monolith.native_training.runner.accelerated_task import accelerated, embedding_spec
from monolith.native_training.saver.tide import TimeSource
from monolith.table import Adagrad
from monolith.table.routing import FloorModRouting, PartitionRouting
from monolith.tpu_runner import RunnerFlags, TPURunner
from monolith.train import Trainer, TrainSettings
from tests.native_training.runner.toy_task import Preprocessed, Toy
from tests.observe.tensorboard_reader import RunReader

needs_no_device = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")


def params_of(cls=Toy, max_steps=4, **train):
    params = cls.params()
    params.train.max_steps = max_steps
    for name, value in train.items():
        params.train[name] = value
    return params


def runner(folder, params=None, source=None, **flags):
    flags = {"cpu_test": True, "model_dir": str(folder), **flags}
    options = {} if source is None else {"source": source}
    return TPURunner(params or params_of(), RunnerFlags(**flags), **options)


@pytest.mark.req("MN-TPU-T4")
def test_a_cpu_test_trains_for_some_steps(tmp_path):
    result = runner(tmp_path).run()
    assert (result.num_steps, result.num_samples) == (4, 4 * 128)
    assert find(tmp_path).step == 4


def test_a_run_goes_on_from_the_newest_checkpoint(tmp_path):
    runner(tmp_path, params_of(max_steps=3)).run()
    again = runner(tmp_path, params_of(max_steps=4))
    assert again.run().num_steps == 1
    assert again.global_step == 3


def test_the_batch_size_of_a_cpu_test_is_fixed(tmp_path):
    params = params_of()
    made = runner(tmp_path, params)
    made.run()
    assert made.global_batch_size == 128
    assert params.train.per_replica_batch_size == 4
    assert params.accelerator == "tpu"


def test_a_cpu_test_preprocesses_features(tmp_path):
    task = runner(tmp_path, params_of(Preprocessed))._task("train")
    with Trainer(task, TrainSettings(steps=2)) as trainer:
        trainer.fit()
    assert task.num_preprocessed == 3  # once to find the slots
    other = runner(tmp_path, params_of(Preprocessed), cpu_test=False)._task("train")
    assert other.slot_tables
    assert other.num_preprocessed == 0


@pytest.mark.req("MN-TPU-T2")
@pytest.mark.parametrize(
    ("of_task", "flag", "steps"), [(2, 3, [2, 4]), (None, 3, [3, 4]), (None, None, [4])]
)
def test_the_task_decides_the_pace_of_checkpoints_before_the_flag(
    tmp_path, caplog, of_task, flag, steps
):
    caplog.set_level(logging.INFO)
    params = params_of(save_checkpoints_steps=of_task)
    runner(tmp_path, params, save_checkpoints_steps=flag).run()
    names = sorted(path.name for path in tmp_path.glob("*.manifest.json"))
    assert names == [f"model.ckpt-{step}.manifest.json" for step in steps]
    origin = "the flag" if of_task is None else "the task"
    assert f"save_checkpoints_steps is {of_task or flag}, of {origin}" in caplog.text


@pytest.mark.req("MN-TPU-T2")
def test_the_end_date_is_replaced_where_the_task_has_one(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with_date, without = params_of(), FFMParams().task()
    runner(tmp_path, with_date, overwrite_end_date="20270101")
    runner(tmp_path, without, overwrite_end_date="20270101")
    assert with_date.train.end_date == "20270101"
    assert "end_date" not in without.train
    assert caplog.text.count("train.end_date is 20270101 in place of 20260101") == 1


def test_an_empty_end_date_replaces_nothing(tmp_path):
    params = params_of()
    runner(tmp_path, params)
    assert params.train.end_date == "20260101"


@pytest.mark.req("MN-TPU-T3")
def test_training_and_evaluation_together_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"^train_and_eval has not been supported\.$"):
        runner(tmp_path, mode="train_and_eval").run()


@pytest.mark.req("MN-TPU-T3")
def test_a_cpu_test_only_trains(tmp_path):
    with pytest.raises(AssertionError, match="expected mode train with cpu_test, got eval"):
        runner(tmp_path, mode="eval").run()


class Passing:
    """A time that passes by sleeping; `at` has what happens at the n-th sleep."""

    def __init__(self, at=None):
        self.now, self.num_sleeps, self.at = 0.0, 0, at or {}

    def sleep(self, seconds):
        self.num_sleeps += 1
        self.now += seconds
        self.at.get(self.num_sleeps, lambda: None)()

    @property
    def source(self):
        now = datetime(2026, 1, 1, tzinfo=timezone.utc)
        return TimeSource(lambda: now, lambda: self.now, self.sleep)


@pytest.fixture
def on_cpu(monkeypatch):
    """Let runners that evaluate do so on the CPU, as there may be no device."""
    from monolith.native_training.runner import tpu_runner as module

    monkeypatch.setattr(module, "check_device", lambda device: None)
    monkeypatch.setattr(module, "await_healthy", lambda device, **options: None)

    def made(folder, params, source):
        made = runner(folder, params, source, cpu_test=False, mode="eval")
        made.device, made.params.accelerator = "cpu", None
        return made

    return made


def trained(folder, max_steps, **train):
    runner(folder, params_of(max_steps=max_steps, **train)).run()


@pytest.mark.req("MN-TPU-T4")
def test_an_evaluation_follows_checkpoints_until_the_last_step(tmp_path, on_cpu):
    trained(tmp_path, 2)
    time = Passing({3: lambda: trained(tmp_path, 4)})
    found = on_cpu(tmp_path, params_of(max_steps=4), time.source).run()
    assert list(found) == [2, 4]
    assert found[4]["loss"] < found[2]["loss"]
    assert time.num_sleeps == 3
    points = RunReader(tmp_path / "eval").values("eval/loss")
    assert [step for step, _ in points] == [2, 4]
    assert [float(value) for _, value in points] == pytest.approx(
        [f["loss"] for f in found.values()]
    )


@pytest.mark.req("MN-TPU-T4")
def test_a_checkpoint_that_is_gone_is_skipped(tmp_path, on_cpu, monkeypatch, caplog):
    trained(tmp_path, 4, save_checkpoints_steps=1)
    from monolith.native_training.runner import tpu_runner as module

    listed = module.existing_checkpoints

    def gone_after_listing(folder):
        prefixes = listed(folder)
        for path in tmp_path.glob("model.ckpt-2*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return prefixes

    monkeypatch.setattr(module, "existing_checkpoints", gone_after_listing)
    found = on_cpu(tmp_path, params_of(max_steps=4), Passing().source).run()
    assert list(found) == [1, 3, 4]
    assert "model.ckpt-2 is skipped" in caplog.text


def test_an_evaluation_ends_after_five_hours_without_a_checkpoint(tmp_path, on_cpu, caplog):
    time = Passing()
    time.sleep = lambda seconds: setattr(time, "now", time.now + 3600)
    assert on_cpu(tmp_path, params_of(), time.source).run() == {}
    assert time.now == 5 * 3600
    assert "no checkpoint within 18000 s" in caplog.text


@needs_no_device
@pytest.mark.req("MN-TPU-T6")
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_missing_device_is_an_error(tmp_path, mode):
    with pytest.raises(FailedPreconditionError, match=r"got 0 CUDA devices; .* with --cpu_test"):
        runner(tmp_path, cpu_test=False, mode=mode).run()


def test_xla_is_refused(tmp_path):
    with pytest.raises(NotImplementedError, match="got 'xla'"):
        runner(tmp_path, cpu_test=False, tpu="xla")


def test_the_accelerator_of_a_task_is_a_cuda_device():
    params = params_of()
    params.accelerator = "tpu"
    assert params.instantiate().train_settings(TrainSettings()).device == "cuda"
    assert params.instantiate().train_settings(TrainSettings(device="cuda:1")).device == "cuda:1"


@pytest.mark.req("MN-TPU-T6")
def test_pipelining_looks_rows_up_one_step_ahead(tmp_path):
    plain = runner(tmp_path / "plain").run()
    piped = runner(tmp_path / "piped", pipeline_execution=True).run()
    assert (plain.prefetch, plain.figures.staleness_bound) == (0, 0)
    assert (piped.prefetch, piped.figures.staleness_bound) == (1, 1)


@pytest.mark.req("MN-TPU-T6")
@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4]), (3, [3, 4])])
def test_summaries_are_written_at_the_interval(tmp_path, every, steps):
    runner(tmp_path, host_call_every_n_steps=every).run()
    assert [step for step, _ in RunReader(tmp_path).values("train/loss")] == steps


@pytest.mark.req("MN-TPU-T6")
def test_an_interval_of_0_writes_no_summaries(tmp_path):
    made = runner(tmp_path, host_call_every_n_steps=0)
    made.run()
    assert not list(tmp_path.glob("events.*"))
    assert made._settings(None).log_every == 100


RANKS = "tests.native_training.runner.rank_runs"


@pytest.mark.dist
@pytest.mark.req("MN-TPU-T6")
def test_the_partition_strategy_places_rows_and_changes_no_result(rank_forks, tmp_path):
    rows, dense, num_rows = [], [], []
    for strategy, routing in (("mod", FloorModRouting(2)), ("div", PartitionRouting(2))):
        folder = tmp_path / strategy
        folder.mkdir()
        found = rank_forks.run(folder, 2, f"{RANKS}:run", str(folder / "model"), strategy)
        assert [each["steps"] for each in found] == [4, 4]
        assert [each["samples"] for each in found] == [2 * 4 * 128] * 2
        assert [each["batch"] for each in found] == [256, 256]
        for rank, each in enumerate(found):
            assert set(routing.shard_of(torch.tensor(each["keys"])).tolist()) == {rank}
        with load(folder / "model").load_tables(["id"])["id"] as table:
            rows.append(table.lookup(torch.arange(-40, 40)))
        dense.append(load(folder / "model").read_dense())
        num_rows.append([len(each["keys"]) for each in found])
    assert num_rows[0] == [40, 40]  # all of 80 ids
    assert sum(num_rows[1]) == 80
    assert torch.equal(*rows)
    assert rows[0].abs().sum() > 0
    assert all(torch.equal(dense[0][name], dense[1][name]) for name in dense[0])


@pytest.mark.dist
def test_ranks_on_devices_are_refused(rank_forks, tmp_path):
    found = rank_forks.run(tmp_path, 2, f"{RANKS}:refusal", str(tmp_path / "model"))
    for text in found:
        assert "expected one process for 'cuda', got 2 ranks of torchrun" in text


def rows_after_a_step(tmp_path, factor):
    params = params_of(max_steps=1)
    params.gradient_multiplier = factor
    task = runner(tmp_path, params)._task("train")
    with Trainer(task, TrainSettings(steps=1)) as trainer:
        trainer.fit()
        return trainer.features.tables["id"].lookup(torch.tensor([3]))


@pytest.mark.req("MN-TPU-T6")
def test_the_gradient_multiplier_changes_rows_and_nothing_else(tmp_path):
    """The first step of AdaGrad is lr * g / sqrt(1 + g^2)."""
    one, four = (rows_after_a_step(tmp_path, factor).double() for factor in (1.0, 4.0))
    gradient = -one / (1 - one**2).sqrt()
    expected = -4 * gradient / (1 + (4 * gradient) ** 2).sqrt()
    assert torch.allclose(four, expected, atol=1e-3)  # rows are fp16
    assert not torch.allclose(one, four, atol=1e-3)


def test_rows_are_trained_by_adagrad_with_rate_1(tmp_path):
    task = runner(tmp_path)._task("train")
    (part,) = task.features[0].slices
    assert part.optimizer == Adagrad(1.0)
    assert task.embedding.optimizer == Adagrad(1.0)


def test_a_task_without_slots_has_no_embedding_spec():
    class Dense(Toy):
        features = ()

    task = Dense.params().instantiate()
    assert embedding_spec(task, "mod", is_pipelined=False) is None
    assert accelerated(task, is_cpu_test=True).features == ()


def test_other_tasks_are_refused(tmp_path):
    made = runner(tmp_path)

    class Other:
        train = made.params.train

        def copy(self):
            return self

        def instantiate(self):
            return object()

    made.params = Other()
    with pytest.raises(TypeError, match="the parameters of a NativeTask, got those of object"):
        made.run()


def test_a_runner_needs_a_folder():
    with pytest.raises(InvalidArgumentError, match="expected a folder for checkpoints, got none"):
        TPURunner(params_of(), RunnerFlags(cpu_test=True))


def test_main_runs_the_task_of_the_registry(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    key = "tests.native_training.runner.toy_task.ToyParams"
    result = tpu_runner.main([f"--task={key}", f"--model_dir={tmp_path}", "--cpu_test"])
    assert result.ended == "end of data"
    assert "flag cpu_test: True" in caplog.text
    assert "per_replica_batch_size" in caplog.text


def test_main_needs_a_task():
    with pytest.raises(InvalidArgumentError, match="expected a task, got none; set --task"):
        tpu_runner.main(["--model_dir=x"])
