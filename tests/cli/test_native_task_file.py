import functools

import pytest

from monolith.checkpoint import existing_checkpoints
from tests.cli.run import run

TASK = """
import torch
from monolith.native_training.feature import FeatureColumn, FeatureSlotConfig
from monolith.native_training.native_task import EstimatorSpec, NativeTask
from monolith.ops import Ragged

class Clicks(NativeTask):
    def create_input_fn(self, mode):
        batch = {"user": Ragged.from_lists([[7], [8]]), "label": torch.tensor([1.0, 0.0])}
        return lambda: [batch] * 20

    def create_model_fn(self):
        def model_fn(features, mode, config):
            print("reads", self.p.train.file_pattern)
            slot = self.ctx.create_feature_slot(FeatureSlotConfig("user", slot_id=1))
            column = FeatureColumn(slot, "user")
            logit = column.embedding_lookup(slot.add_feature_slice(1)).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, features["label"])
            return EstimatorSpec(mode, logit.sigmoid(), loss)
        return model_fn
"""


@pytest.fixture
def train(capsys, monkeypatch, tmp_path):
    path = tmp_path / "clicks.py"
    path.write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return functools.partial(run, capsys, monkeypatch, "train", path)


def test_a_native_task_trains_as_its_parameters_say(train, tmp_path):
    ran = train(
        "--data", "clicks/", "--checkpoints", "run",
        "--set", "params.train.max_steps=7", "--set", "params.train.save_checkpoints_steps=3",
    )  # fmt: skip
    assert ran.status == 0
    assert "7 steps, 14 samples" in ran.err
    assert "reads clicks/" in ran.out
    steps = sorted(prefix.rpartition("-")[2] for prefix in existing_checkpoints(tmp_path / "run"))
    assert steps == ["3", "6", "7"]
    more = train("--checkpoints", "run", "--resume", "--set", "params.train.max_steps=9")
    assert "resumed at step 7" in more.err
    assert "2 steps, 4 samples" in more.err


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("params.trian.steps=3", "got 'params.trian.steps': trian.steps (did you mean: [train])"),
        ("params.train.steps=x", "expected params.train.steps as int or None, got 'x'"),
        ("params.train.use_gpu_emb_table=true", "another value needs tables on an accelerator"),
        (
            "params.train.save_checkpoints_steps=3",
            "expected a folder for the checkpoints of params",
        ),
    ],
)
def test_wrong_parameters_end_in_one_line(train, setting, text):
    ran = train("--set", setting)
    (line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert text in line
    assert (ran.status, "Traceback" in ran.err) == (1, False)
