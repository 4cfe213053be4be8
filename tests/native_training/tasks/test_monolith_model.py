import pytest
import torch

from monolith import base_model
from monolith.native_training.tasks.input_data import as_batch
from monolith.native_training.tasks.monolith_model import EstimatorSpec, MonolithModel
from monolith.native_training.tasks.native_task import ServingReceiver
from monolith.table import Zeros
from monolith.table.optimizers import SGD
from monolith.train import Trainer
from tests.native_training.tasks.native_tasks import columns, trained, weights


class Rank(MonolithModel):
    """A linear layer over the weight of the ids."""

    def __init__(self, params):
        super().__init__(params)
        self.layer = torch.nn.Linear(1, 1)
        self.make = lambda pred, label, loss: EstimatorSpec(label, pred, "rank", loss, sgd)
        self.extra = None

    def input_fn(self, mode):
        return [columns(0.0)] * 2

    def model_fn(self, features, mode):
        self.create_embedding_feature_column("a")
        weight = self.lookup_embedding_slice(["a"], "vec", 1, Zeros(), SGD(1.0), out_type="concat")
        if self.extra is not None:
            self.add_loss(self.extra(weight))
        pred = self.layer(weight).squeeze(1)
        return self.make(pred, features["label"], (pred - features["label"]).square().sum())


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


def made(**attributes):
    task = Rank.params().instantiate()
    with torch.no_grad():
        task.layer.weight.fill_(1.0)
        task.layer.bias.fill_(0.5)
    for name, value in attributes.items():
        setattr(task, name, value)
    return task


def test_tables_and_dense_model_are_trained():
    task = made()
    trainer = trained(task, steps=1)
    # Predictions are 0.5, labels 0: each of the three ids has a gradient of 1.
    assert weights(trainer) == [-1.0, -2.0]
    assert task.layer.bias.item() == pytest.approx(0.5 - 0.01 * 2)


def test_losses_are_added():
    assert weights(trained(made(extra=lambda x: [x.sum(), x.sum()]), steps=1)) == [-3.0, -6.0]
    assert weights(trained(made(extra=lambda x: x.sum()), steps=1)) == [-2.0, -4.0]


def test_label_loss_and_prediction_are_a_spec_with_the_default_optimizer():
    plain = {"make": lambda pred, label, loss: (label, loss, pred)}
    trainer = trained(made(**plain, _default_dense_optimizer=sgd), steps=1)
    assert weights(trainer) == [-1.0, -2.0]


def test_an_optimizer_is_taken_as_it_is():
    task = made()
    optimizer = sgd(task.layer.parameters())
    task.make = lambda pred, label, loss: EstimatorSpec(label, pred, None, loss, optimizer)
    assert task.optimizer(task.build()) is optimizer


def test_nothing_to_train_needs_no_optimizer():
    assert made().optimizer(torch.nn.Identity()) is None


@pytest.mark.parametrize(
    ("heads", "names"),
    [
        (lambda pred: {"x": pred, "y": pred}, None),
        (lambda pred: [pred, pred], ["x", "y"]),
        (lambda pred: (pred, pred), "x,y"),
    ],
)
def test_heads_are_side_by_side(heads, names):
    task = made(make=lambda pred, label, loss: EstimatorSpec(None, heads(pred), names, loss, sgd))
    (output,) = Trainer(task).predict([as_batch(columns(), "label")])
    assert output.prediction.tolist() == [[0.5, 0.5]] * 2


def test_a_request_is_what_the_task_says():
    task, receiver = made(), ServingReceiver(("x",), dict)
    assert task.create_serving_input_receiver_fn() is None
    task.serving_input_receiver_fn = lambda: receiver
    assert task.create_serving_input_receiver_fn()() is receiver


def test_groups_of_features_are_joined():
    class Groups(Rank):
        def model_fn(self, features, mode):
            for name in ("a", "b", "c"):
                self.create_embedding_feature_column(name, shared_name="a", combiner="reduce_mean")
            summed = self.lookup_embedding_slice([["a", "b"], ["c"]], "vec", 2)
            beside = self.lookup_embedding_slice([["a", "b"]], "vec", 2, group_out_type="concat")
            self.shapes = [tuple(each.shape) for each in (*summed, *beside)]
            loss = sum(each.sum() for each in summed)
            return EstimatorSpec(None, summed[0][:, 0], None, loss)

    task = Groups.params().instantiate()
    assert [feature.table for feature in task.features] == ["a", "a", "a"]
    assert task.shapes == [(2, 2), (2, 2), (2, 4)]


def test_slots_of_fids_are_shared_by_the_task_too():
    assert "a_share" in Rank.share_slot(columns(), {"a": (False, 3)})


def test_the_import_path_of_the_reference_system_is_ours():
    assert base_model.MonolithModel is MonolithModel
    assert issubclass(MonolithModel, base_model.MonolithBaseModel)
    assert base_model.EstimatorSpec is EstimatorSpec


def test_a_dense_model_needs_an_optimizer():
    task = made(make=lambda pred, label, loss: EstimatorSpec(label, pred, None, loss))
    with pytest.raises(Exception, match=r"^dense_optimizer not found!$"):
        Trainer(task)


@pytest.mark.parametrize("given", [None, (1, 2), [1, 2, 3]])
def test_anything_else_than_a_spec_is_refused(given):
    with pytest.raises(Exception, match=r"^EstimatorSpec Error!$"):
        _ = made(make=lambda *_: given).features


def test_heads_have_a_name_and_a_label_each():
    task = made(make=lambda pred, label, loss: EstimatorSpec([label], [pred, pred], "x", loss))
    with pytest.raises(
        AssertionError, match="as many names and labels as predictions, got 1, 1 and"
    ):
        _ = task.features


@pytest.mark.parametrize(
    ("name", "value", "kinds"),
    [("feature_list", 3, "str or PathLike or None"), ("enable_fused_layout", "yes", "bool")],
)
def test_parameters_of_columns_of_another_type_are_refused(name, value, kinds):
    params = Rank.params().set(**{name: value})
    with pytest.raises(TypeError, match=f"expected params.{name} as {kinds}, got {value!r}"):
        params.instantiate()
