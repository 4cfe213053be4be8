import re

import pytest
import torch

from monolith.data import Batch
from monolith.errors import InvalidArgumentError
from monolith.train import Trainer
from tests.train.tasks import Clicks, clicks

LOSS, ROWS = torch.ones((), requires_grad=True), torch.ones(8)


class Giving(Clicks):
    def __init__(self, outputs):
        super().__init__(held_out=clicks(1))
        self.outputs = outputs

    def loss(self, model, inputs, batch):
        return self.outputs


@pytest.mark.parametrize(
    ("kind", "outputs", "text"),
    [
        (TypeError, LOSS, "loss and prediction, two tensors, got Tensor"),
        (TypeError, (LOSS, ROWS, ROWS), "loss and prediction, two tensors, got tuple of 3"),
        (TypeError, (LOSS, None), "loss and prediction, two tensors, got (Tensor, NoneType)"),
        (ValueError, (LOSS + ROWS, ROWS), "a loss of one number, got shape (8,); take its mean"),
        (ValueError, (LOSS, LOSS), "a prediction for each sample, got one number"),
    ],
)
@pytest.mark.parametrize("verb", ["fit", "evaluate"])
def test_outputs_other_than_loss_and_prediction_are_refused(verb, kind, outputs, text):
    expected = f"^{re.escape(f'[Task.loss] expected {text}')}$"
    with Trainer(Giving(outputs)) as trainer, pytest.raises(kind, match=expected):
        getattr(trainer, verb)()


def test_a_loss_without_a_gradient_is_refused_in_training_alone():
    with Trainer(Giving((LOSS.detach(), ROWS))) as trainer:
        with pytest.raises(ValueError, match=r"^\[Task.loss\] expected a loss with a gradient"):
            trainer.fit()
        assert trainer.evaluate()["loss"] == 1.0


def test_a_stop_iteration_of_a_loss_does_not_pass_for_the_end_of_the_data():
    class Stopping(Clicks):
        def loss(self, model, inputs, batch):
            return next(iter([]))

    with Trainer(Stopping()) as trainer, pytest.raises(RuntimeError, match="got StopIteration"):
        trainer.fit()


def test_a_prediction_that_needs_a_label_says_how_to_do_without():
    unlabelled = [Batch(batch.features, batch.dense) for batch in clicks(1)]
    text = r"^\[Task.predict\] expected label click in the batch, .* override predict\(model"
    with Trainer(Clicks()) as trainer, pytest.raises(InvalidArgumentError, match=text):
        next(trainer.predict(unlabelled))


def test_another_error_of_a_prediction_stays_as_it_is():
    class Wrong(Clicks):
        def loss(self, model, inputs, batch):
            raise ValueError("wrong")

    with Trainer(Wrong()) as trainer, pytest.raises(ValueError, match=r"^wrong$"):
        next(trainer.predict(clicks(1)))
