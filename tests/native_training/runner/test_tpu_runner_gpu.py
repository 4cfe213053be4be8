import pytest
import torch

from monolith.tpu_runner import RunnerFlags, TPURunner
from tests.native_training.runner.toy_task import Toy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
]


def runner(folder, **flags):
    params = Toy.params()
    params.train.max_steps = 4
    return TPURunner(params, RunnerFlags(model_dir=str(folder), **flags))


@pytest.mark.req("MN-TPU-T5")
def test_the_task_trains_and_is_evaluated_on_the_device(tmp_path):
    made = runner(tmp_path)
    result = made.run()
    assert (result.num_steps, made.device, made.global_batch_size) == (4, "cuda", 4)
    on_cpu = runner(tmp_path / "cpu", cpu_test=True).run()
    # Batches of 128 in a CPU test have each of the ids of the batches of 4, and others.
    assert on_cpu.num_steps == 4
    found = runner(tmp_path, mode="eval").run()
    assert list(found) == [4]
    assert found[4]["loss"] < result.figures.loss


@pytest.mark.req("MN-TPU-T5")
def test_the_dense_part_is_on_the_device(tmp_path):
    made = runner(tmp_path)
    task = made._task("train")
    trainer, num_replicas = made.create_tpu_estimator(task, None)
    with trainer:
        trainer.fit()
        assert {parameter.device.type for parameter in trainer.model.parameters()} == {"cuda"}
    assert num_replicas == 1
