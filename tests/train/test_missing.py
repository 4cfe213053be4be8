import pytest
import torch

from monolith.data import Batch
from monolith.nn import Feature
from monolith.ops import Ragged
from monolith.table import Constant
from monolith.table.optimizers import SGD
from monolith.train import Task, Trainer, TrainSettings

IDS = {"id": Ragged.from_lists([[7]])}


class Score(Task):
    """Remembers the values that ids read as in training; a row begins with 3."""

    features = (Feature("id", dim=1, optimizer=SGD(1.0), initializer=Constant(3.0)),)

    def __init__(self, missing="initial"):
        super().__init__()
        self.missing, self.values = missing, []

    def source(self, mode):
        return [Batch(IDS, labels={"label": torch.tensor([0.0])})] * 2

    def build(self):
        return torch.nn.Identity()

    def loss(self, model, inputs, batch):
        value = inputs.pooled["id"].squeeze(1)
        self.values.append(value.item())
        return value.sum(), value

    def metrics(self):
        return {}


@pytest.mark.req("NT-MODEL-T4")
@pytest.mark.parametrize("servers", [None, 2])
@pytest.mark.parametrize(("missing", "first"), [("initial", 3.0), ("zeros", 0.0)])
def test_an_id_without_a_row_reads_as_the_task_says(missing, first, servers):
    with Trainer(Score(missing), servers=servers) as trainer:
        trainer.fit()
    assert trainer.task.values == [first, 2.0]  # the row is inserted with 3, less the gradient


def test_prediction_reads_zeros_whatever_training_reads():
    for missing in ("initial", "zeros"):
        with Trainer(Score(missing)) as trainer:
            assert next(trainer.predict()).prediction.tolist() == [0.0]


def test_a_checkpoint_goes_on_with_another_way_to_read(tmp_path):
    with Trainer(Score("initial"), TrainSettings(steps=1, checkpoint_dir=str(tmp_path))) as trainer:
        trainer.fit()
    with Trainer(Score("zeros")) as trainer:
        trainer.restore(tmp_path)
        trainer.fit()
    assert trainer.task.values[0] == 2.0


def test_another_value_is_refused():
    with pytest.raises(ValueError, match="expected missing 'initial' or 'zeros', got 'ones'"):
        Trainer(Score("ones"))
