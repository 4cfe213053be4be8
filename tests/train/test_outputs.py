import re

import pytest
import torch

from monolith.train import Trainer
from tests.train.tasks import Clicks, clicks

LOSS, ROWS = torch.ones((), requires_grad=True), torch.ones(8)


class Giving(Clicks):
    def __init__(self, given):
        super().__init__(held_out=clicks(1))
        self.given = given

    def loss(self, model, inputs, batch):
        return self.given


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        (TypeError, LOSS, "loss and prediction, two tensors, got Tensor"),
        (TypeError, (LOSS, ROWS, ROWS), "loss and prediction, two tensors, got tuple of 3"),
        (TypeError, (LOSS, None), "loss and prediction, two tensors, got (Tensor, NoneType)"),
        (ValueError, (LOSS + ROWS, ROWS), "a loss of one number, got shape (8,); take its mean"),
        (ValueError, (LOSS, LOSS), "a prediction for each sample, got one number"),
    ],
)
@pytest.mark.parametrize("verb", ["fit", "evaluate"])
def test_what_is_no_loss_and_prediction_is_refused(verb, kind, given, text):
    expected = f"^{re.escape(f'[Task.loss] expected {text}')}$"
    with Trainer(Giving(given)) as trainer, pytest.raises(kind, match=expected):
        getattr(trainer, verb)()


def test_a_loss_without_a_gradient_is_refused_in_training_alone():
    with Trainer(Giving((LOSS.detach(), ROWS))) as trainer:
        with pytest.raises(ValueError, match=r"^\[Task.loss\] expected a loss with a gradient, got"):
            trainer.fit()
        assert trainer.evaluate()["loss"] == 1.0
