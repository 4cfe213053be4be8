import pytest
import torch

from monolith.data import Batch
from monolith.train import Task, Trainer, TrainSettings

PRICES = [Batch({}, {"price": torch.tensor([1.0, 2.0])}, {"label": torch.tensor([2.0, 4.0])})] * 3


class Price(Task):
    """Learns that the label is twice the price; there is no feature."""

    dense = ("price",)

    def source(self, mode):
        return PRICES

    def build(self):
        layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(layer.weight)
        return layer

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model, inputs, batch):
        value = model(inputs.matrix).squeeze(1)
        return ((value - batch.label) ** 2).mean(), value

    def metrics(self):
        return {}


class Nothing(Price):
    def build(self):
        return torch.nn.Identity()

    def optimizer(self, model):
        return None


@pytest.mark.parametrize("servers", [None, 2])
def test_a_task_without_features_trains_its_dense_model(servers):
    with Trainer(Price(), TrainSettings(steps=1), servers) as trainer:
        result = trainer.fit()
        assert trainer.model.weight.item() == pytest.approx(0.1 * (2 * 2 + 4 * 4) / 2)
        assert (result.num_steps, result.figures.num_rows) == (1, 0)
        assert set(trainer.evaluate()) == {"loss"}
        assert next(trainer.predict()).prediction.shape == (2,)


def test_a_matrix_without_any_column_has_a_row_for_each_sample():
    class Bare(Price):
        dense = ()

        def loss(self, model, inputs, batch):
            assert inputs.matrix.shape == (2, 0)
            return super().loss(
                model, type("Own", (), {"matrix": batch.dense["price"][:, None]}), batch
            )

    with Trainer(Bare(), TrainSettings(steps=1)) as trainer:
        assert trainer.fit().num_steps == 1


def test_a_checkpoint_of_a_task_without_features_goes_on(tmp_path):
    settings = TrainSettings(steps=2, checkpoint_dir=str(tmp_path))
    with Trainer(Price(), settings) as trainer:
        trainer.fit()
        weight = trainer.model.weight.item()
    with Trainer(Price()) as trainer:
        trainer.restore(tmp_path)
        assert (trainer.model.weight.item(), trainer.run.global_step) == (weight, 2)


def test_nothing_to_train_is_refused():
    text = (
        r"^\[Trainer\] expected features, or a model with parameters and an optimizer, got "
        r"neither: nothing would be trained \(task 'Nothing'\)$"
    )
    with pytest.raises(ValueError, match=text):
        Trainer(Nothing())
