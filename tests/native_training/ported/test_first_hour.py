"""A file with the imports of the reference system, changed as the command line says."""

import re

from tests.cli.run import run

OLD = """
import tensorflow as tf
from tensorflow.keras import layers
from monolith.core import hyperparams
from monolith.core import model_registry
from monolith.native_training import entry
from monolith.native_training.monolith_export import monolith_export
from monolith.native_training.native_model import MonolithModel
from monolith.native_training.estimator import EstimatorSpec
from monolith.ops import Ragged


class Clicks(MonolithModel):
    def __init__(self, params):
        super().__init__(params)
        self.tower = nn.Linear(4, 1)
        self._default_dense_optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1)

    def input_fn(self, mode):
        return [{"user": Ragged.from_lists([[1], [2]]), "label": torch.tensor([0.0, 1.0])}] * 3

    def model_fn(self, features, mode):
        self.create_embedding_feature_column("user")
        vector = self.lookup_embedding_slice(
            ["user"], "vec", 4, optimizer=entry.AdagradOptimizer(0.1), out_type="concat"
        )
        pred = torch.sigmoid(self.tower(vector)).reshape(-1)
        loss = ((pred - features["label"]) ** 2).sum()
        return features["label"], loss, pred


@model_registry.RegisterSingleTaskModel
class ClicksParams(model_registry.SingleTaskModelParams):
    def task(self):
        params = Clicks.params()
        params.train.max_steps = 2
        return params
"""


def test_following_the_messages_leads_to_a_run(tmp_path, capsys, monkeypatch):
    path = tmp_path / "first_hour.py"
    path.write_text(OLD)
    messages = []
    while (result := run(capsys, monkeypatch, "train", path)).status == 2:
        messages.append(result.err)
        number, change = re.search(r"line (\d+); (.*); see docs", result.err).groups()
        lines = path.read_text().splitlines()
        lines[int(number) - 1] = (
            change.removeprefix("change it to ").strip("'").replace("remove the line", "")
        )
        path.write_text("\n".join(lines) + "\n")
        assert len(messages) < 10
    assert result.status == 0, result.err
    assert "2 steps, 4 samples" in result.err
    assert len(messages) == 5
