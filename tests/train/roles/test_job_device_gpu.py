"""A job whose worker has its model on a CUDA device, and whose servers have none."""

import math

import pytest
import torch

from monolith.train import Trainer, TrainSettings
from tests.train.device_runs import launch
from tests.train.roles import job_tasks
from tests.train.roles.job_tasks import Counted, JobSettings, write_samples
from tests.train.tasks import state_of

pytestmark = [
    pytest.mark.dist,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
]


def numbers(values):
    return [n for name in sorted(values) for n in torch.tensor(values[name]).flatten().tolist()]


@pytest.mark.parametrize("push", [0, 1])
def test_a_job_of_one_worker_agrees_with_a_run_on_the_cpu(tmp_path, push):
    pytest.importorskip("zmq")
    data = write_samples(tmp_path / "samples.parquet", 160)
    words = [f"{job_tasks.__file__}:Counted", "--ps", "1", "--workers", "1", "--data", data]
    words += ["--device", "cuda", "--checkpoints", str(tmp_path / "saved")]
    words += ["--set", "train.threads=1", "--set", f"train.push={push}"]
    launch(*words)
    settings = JobSettings(data={"train": data})
    with Trainer(Counted(settings), TrainSettings(threads=1)) as local:
        local.fit()
        expected = state_of(local)[1]
    with Trainer(Counted(settings)) as saved:
        saved.restore(tmp_path / "saved")
        found = state_of(saved)[1]
        assert len(saved.features.tables["sample"]) == 160
    tolerance = 1e-3 if push == 0 else 0.05  # with push, dense parameters are a step old
    for one, other in zip(numbers(found), numbers(expected), strict=True):
        assert math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
