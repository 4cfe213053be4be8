"""Synchronous training by the reference system's entry points."""

import pytest
import torch

from monolith.checkpoint import load
from monolith.cluster.discovery import HostServiceDiscovery
from monolith.errors import InvalidArgumentError
from monolith.native_training import hvd_lib
from monolith.native_training.cpu_training import (
    DistributedCpuTrainingConfig,
    distributed_sync_train,
    distributed_train,
)
from monolith.native_training.jobs.sync_train import sync_settings
from monolith.observe import MemorySink
from monolith.train.run_state import seed_all
from tests.native_training.sync_tasks import (
    EmbeddingUpdateTask,
    FeatureTask,
    FloatFeatureTask,
    NonFeatureTask,
    SequenceFeatureTask,
    sync_job,
    trained,
)
from tests.observe.tensorboard_reader import RunReader

JOB = "tests.native_training.sync_tasks:sync_job"


@pytest.fixture(autouse=True)
def leave():
    yield
    hvd_lib.shutdown()


@pytest.mark.req("TS-CPUSYNC-T1")
@pytest.mark.parametrize(
    "cls", [FeatureTask, FloatFeatureTask, SequenceFeatureTask, NonFeatureTask]
)
def test_tasks_train(cls):
    task, result = trained(cls)
    assert (result.num_steps, result.ended) == (2, "steps")
    assert getattr(task, "numbers", [5, 7]) == [5, 7]


@pytest.mark.req("TS-CPUSYNC-T2")
def test_embeddings_of_both_kinds_are_equal_at_each_step():
    task, result = trained(EmbeddingUpdateTask, steps=10)
    assert result.num_steps == 10
    seen = task.seen[1:]  # the first call finds the slots
    for step, values in enumerate(seen):
        expected = 4 * -0.1 * sum(1 / (1 + j) ** 0.5 for j in range(1, step + 1))
        assert values == pytest.approx([expected] * 5, abs=1e-5)
    assert len(seen) == 10


@pytest.mark.req("TS-CPUSYNC-T3")
def test_a_job_of_one_rank_ends(tmp_path):
    found = sync_job("FeatureTask", str(tmp_path), 2, {"enable_embedding_postpush": False})
    assert (found["steps"], found["ended"]) == (2, "stopped")
    assert load(tmp_path).step == 2


PIPELINED = {"enable_pipelined_fwda2a": True, "enable_pipelined_bwda2a": True}


def rows_of(folder, table, keys):
    """Rows of a checkpoint."""
    with load(folder).load_tables([table])[table] as restored:
        return restored.lookup(torch.tensor(keys))


@pytest.mark.dist
@pytest.mark.req("TS-CPUSYNC-T4")
def test_a_pipelined_run_ends_with_the_rows_of_a_plain_one(rank_forks, tmp_path):
    """The gradients of this task do not depend on rows, so that staleness changes nothing."""
    rows = []
    for name, options in (("plain", {}), ("piped", PIPELINED)):
        folder = tmp_path / name
        folder.mkdir()
        arguments = JOB, "FeatureTask", str(folder / "model"), 4, options
        found = rank_forks.run(folder, 2, *arguments)
        assert [each["steps"] for each in found] == [4, 4]
        assert max(each["staleness"] for each in found) <= (2 if options else 0)
        rows.append(rows_of(folder / "model", "feature", [1, 2, 3, 4]))
    assert torch.equal(*rows)
    assert rows[0].tolist() == [[-8.0] * 5] * 4  # 4 steps of 2 ranks


@pytest.mark.dist
@pytest.mark.req("TS-CPUSYNC-T5")
@pytest.mark.parametrize("options", [{}, {"enable_embedding_postpush": True}])
def test_parameters_are_equal_in_both_ranks(rank_forks, tmp_path, options):
    folder = str(tmp_path / "model")
    first, second = rank_forks.run(tmp_path, 2, JOB, "Regression", folder, 4, options)
    assert (first["steps"], second["steps"]) == (4, 4)
    assert first["dense"] == second["dense"]
    assert first["staleness"] <= len(options)
    (weight,) = [v for name, v in load(folder).read_dense().items() if name.endswith("weight")]
    assert weight.tolist() == first["dense"][0]


@pytest.mark.dist
@pytest.mark.req("TS-CPUSYNC-T6")
def test_dense_gradients_are_averaged_and_those_of_rows_summed(rank_forks, tmp_path):
    """The rule of the reference system, with a learning rate of 1."""
    rank_forks.run(tmp_path, 2, JOB, "Ones", str(tmp_path / "model"), 1)
    assert rows_of(tmp_path / "model", "id", [1]).item() == -1.0 * 2
    seed_all(0)
    before = torch.nn.Linear(1, 1, bias=False).weight.item()
    (after,) = [v for n, v in load(tmp_path / "model").read_dense().items() if "weight" in n]
    assert after.item() == pytest.approx(before - (1 + 2) / 2)


@pytest.mark.dist
@pytest.mark.req("NT-STRH-T4")
def test_a_job_ends_with_the_data_of_the_shorter_rank(rank_forks, tmp_path):
    arguments = JOB, "Regression", str(tmp_path / "model"), None, {}, [3, 5]
    assert [each["steps"] for each in rank_forks.run(tmp_path, 2, *arguments)] == [3, 3]
    assert load(tmp_path / "model").step == 3


@pytest.mark.dist
@pytest.mark.parametrize("sizes", [[[3, 0], [2, 2, 2, 2]], [[3, 1, 1], [2, 0]]])
def test_a_last_batch_without_samples_ends_all_ranks(rank_forks, tmp_path, sizes):
    arguments = JOB, "Counted", str(tmp_path / "model"), None, {}, sizes
    assert [each["steps"] for each in rank_forks.run(tmp_path, 2, *arguments)] == [2, 2]


@pytest.mark.dist
def test_requests_of_samples_stop_a_job(rank_forks, tmp_path):
    """The samples of the n-th batch of rank 0 have time 100 n."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "limit_req_time").write_text("200")
    arguments = JOB, "Regression", str(tmp_path / "model"), 4, {}, None, True
    assert [each["steps"] for each in rank_forks.run(tmp_path, 2, *arguments)] == [2, 2]


@pytest.mark.dist
@pytest.mark.req("NT-SUMOP-T4")
def test_summaries_are_those_of_rank_0_in_one_file(rank_forks, tmp_path):
    options = {"log_step_count_steps": 2}
    rank_forks.run(tmp_path, 2, JOB, "Regression", str(tmp_path / "model"), 4, options)
    (path,) = (tmp_path / "model").glob("events.out.tfevents.*")
    points = RunReader(path.parent).values("train/loss")
    assert [step for step, _ in points] == [2, 4]


def test_a_job_goes_on_from_its_checkpoint(tmp_path):
    for max_steps, steps in ((2, 2), (3, 1)):
        assert sync_job("Regression", str(tmp_path), max_steps)["steps"] == steps
    assert load(tmp_path).step == 3


def test_switches_of_pipelines_are_steps_ahead_and_late_updates():
    def of(**options):
        settings = sync_settings(DistributedCpuTrainingConfig(**options))
        return settings.prefetch, settings.push

    assert of() == (0, 0)
    assert of(enable_pipelined_fwda2a=True) == (1, 0)
    assert of(enable_pipelined_fwda2a=True, embedding_prefetch_capacity=2) == (3, 0)
    for late in ("enable_pipelined_bwda2a", "enable_async_optimize", "enable_embedding_postpush"):
        assert of(**{late: True}) == (0, 1)


def sync_config(**options):
    return DistributedCpuTrainingConfig(**{"enable_sync_training": True, **options})


def test_a_variable_turns_synchronous_training_on_at_any_time(monkeypatch):
    config = DistributedCpuTrainingConfig()
    with pytest.raises(ValueError, match="expected enable_sync_training=True or the variable"):
        distributed_sync_train(config, FeatureTask.params())
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "True")
    assert distributed_sync_train(config, FeatureTask.params()).num_steps == 5
    assert config.enable_sync_training


@pytest.mark.parametrize("value", ["0", "false", ""])
def test_the_variable_can_say_no(monkeypatch, value):
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", value)
    with pytest.raises(ValueError, match="got neither"):
        distributed_sync_train(DistributedCpuTrainingConfig(), FeatureTask.params())


def test_the_index_is_the_rank():
    text = r"^Given RunConfig.index should be consistent with hvd.rank\(\). Got 1 and 0$"
    with pytest.raises(AssertionError, match=text):
        distributed_sync_train(sync_config(index=1, num_workers=2), FeatureTask.params())


def test_the_number_of_workers_is_that_of_ranks():
    with pytest.raises(InvalidArgumentError, match=r"expected num_workers=1, .* got 2"):
        distributed_sync_train(sync_config(num_workers=2), FeatureTask.params())


def test_only_native_tasks_train():
    text = "^distributed train only support NativeTask. Got object$"
    with pytest.raises(ValueError, match=text):
        distributed_sync_train(sync_config(), OtherParams())


class OtherParams:
    def instantiate(self):
        return object()


def test_servers_are_refused():
    with pytest.raises(ValueError, match="expected num_ps=0, got 2"):
        distributed_sync_train(sync_config(num_ps=2), FeatureTask.params())


def test_a_backend_is_refused():
    with pytest.raises(NotImplementedError, match="expected sync_backend=None, got 'zk'"):
        distributed_sync_train(sync_config(), FeatureTask.params(), "zk")


def test_servers_and_ranks_together_are_refused():
    config = sync_config(enable_partial_sync_training=True)
    with pytest.raises(NotImplementedError, match="expected enable_partial_sync_training=False"):
        distributed_sync_train(config, FeatureTask.params())


def test_jobs_with_servers_refuse_synchronous_training(tmp_path):
    config = sync_config(num_ps=1, model_dir=str(tmp_path))
    with pytest.raises(ValueError, match="expected enable_sync_training=False, got True; train on"):
        distributed_train(config, HostServiceDiscovery(tmp_path), FeatureTask.params())


def test_summaries_may_go_to_a_sink_of_the_caller():
    sink = MemorySink()
    distributed_sync_train(sync_config(), FeatureTask.params(), metrics=sink)
    assert sink.events[-1][0] == "run_ended"
