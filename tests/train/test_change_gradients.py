import pytest
import torch

from monolith.data import Batch
from monolith.nn import Feature
from monolith.ops import Ragged
from monolith.table import Zeros
from monolith.table.optimizers import SGD
from monolith.train import Task, Trainer, TrainSettings


class Halves(Task):
    """Halves the gradients of each step, which are clipped to 1 before."""

    features = (Feature("user", dim=1, optimizer=SGD(1.0), initializer=Zeros()),)

    def __init__(self):
        super().__init__()
        self.steps = []

    def source(self, mode):
        return [Batch({"user": Ragged.from_lists([[7]])}, labels={"label": torch.ones(1)})] * 2

    def build(self):
        return torch.nn.Identity()

    def loss(self, model, inputs, batch):
        score = inputs.matrix.squeeze(1)
        return 8 * score.sum(), score

    def change_gradients(self, optimizer, step):
        self.steps.append(step)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)


@pytest.mark.parametrize("push", [0, 1])
def test_a_task_changes_gradients_after_the_clip_of_the_trainer(push):
    task = Halves()
    with Trainer(task, TrainSettings(clip_norm=1.0, push=push)) as trainer:
        trainer.fit()
        row = trainer.features.tables["user"].lookup(torch.tensor([7]))
    assert task.steps == [0, 1]
    assert row.item() == pytest.approx(-1.0, rel=1e-4)
