"""Ranks and a job with servers, as `monolith launch` starts them, go on with each other."""

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

NUM = 480
TASK = """
import os

import torch

import monolith as ml
from monolith.train import Hook


class Note(Hook):
    def after_run(self, ctx, results):
        with open(f"seen-{os.getpid()}.txt", "a") as file:
            for part in results.value.parts:
                file.writelines(f"{u}\\n" for u in part.batch.features["user"].values.tolist())


class Clicks(ml.Task):
    features = (ml.Feature("user", dim=4),)

    def source(self, mode):
        return ml.data.parquet(self.settings.data[mode]).batch(self.settings.batch_size)

    def build(self):
        return torch.nn.Linear(4, 1)

    def loss(self, model, inputs, batch):
        logit = model(inputs.pooled["user"]).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, batch.label)
        return loss, logit.sigmoid()

    def hooks(self):
        return [Note()]
"""


def launch(folder, *words):
    """Run `monolith launch`; the users that were trained so far."""
    common = ("--data", "train.parquet", "--set", "batch_size=8", "--checkpoints", "saves")
    done = subprocess.run(
        [sys.executable, "-m", "monolith", "launch", "task.py", *words, *common],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "once more" not in done.stdout + done.stderr
    return [int(line) for path in folder.glob("seen-*.txt") for line in path.read_text().split()]


@pytest.mark.dist
@pytest.mark.slow
def test_each_sample_is_trained_once_by_ranks_a_job_and_ranks_again(tmp_path):
    columns = {"user": range(NUM), "label": [0.0, 1.0] * (NUM // 2)}
    pq.write_table(pa.table(columns), tmp_path / "train.parquet", row_group_size=32)
    (tmp_path / "task.py").write_text(TASK)
    users = launch(tmp_path, "--ranks", "2", "--set", "train.steps=6")
    assert len(users) == 2 * 6 * 8
    job = ("--ps", "2", "--workers", "2", "--set", "train.steps=20", "--resume")
    users = launch(tmp_path, *job)
    assert 2 * 6 * 8 < len(users) < NUM
    users = launch(tmp_path, "--ranks", "2", "--resume")
    assert sorted(users) == list(range(NUM))
