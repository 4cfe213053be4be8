import numpy as np
import pytest
import torch

from monolith.native_training import model
from monolith.native_training.input import generate_ffm_example, slot_to_key
from monolith.native_training.native_task import ModeKeys
from monolith.native_training.tasks import local_train
from monolith.native_training.tasks.input_data import as_batch
from monolith.train import Hook, Trainer, TrainSettings
from tests.suites.table_base import assert_same_bits

KEYS = [slot_to_key(i) for i in range(6)]


class Losses(Hook):
    def __init__(self):
        self.seen = []

    def after_run(self, ctx, results):
        self.seen.append(float(results.value.loss))


def make_task(**options):
    return model.FFMParams().task().set(**options).instantiate()


def trained(steps):
    """A trainer after some steps on binary labels, and the losses."""
    trainer, losses = Trainer(make_task(label_high=2), TrainSettings(steps=steps)), Losses()
    trainer.fit(hooks=[losses])
    return trainer, losses.seen


def recomputed(trainer, batch):
    """Predictions from the rows of the tables, in plain loops."""
    rows = {}
    for key in KEYS:
        table, ids = trainer.features.tables[key], batch.features[key]
        rows[key] = [table.lookup(torch.tensor(each)).sum(0) for each in ids.to_lists()]
    found = []
    for sample in range(len(batch)):
        row = [rows[key][sample] for key in KEYS]
        out = row[0][0] + row[1][0] + row[2][0]
        begin = [1] * 6
        for user, item, dim in model._FFM_SLOT:
            left = row[user][begin[user] : begin[user] + dim]
            right = row[item][begin[item] : begin[item] + dim]
            begin[user] += dim
            begin[item] += dim
            out = out + (left * right).sum()
        found.append(out.sigmoid())
    return torch.stack(found)


def test_the_constants_are_those_of_the_reference_system():
    assert (model._NUM_SLOTS, list(model._VOCAB_SIZES), model._NUM_EXAMPLES) == (6, [5] * 6, 64)
    assert model._FFM_SLOT == ((0, 3, 16), (0, 4, 16), (1, 5, 16), (2, 3, 16), (2, 5, 16))


@pytest.mark.req("NT-MODEL-T1")
def test_two_tasks_begin_with_the_same_batch():
    first, second = (next(iter(make_task().create_input_fn(ModeKeys.TRAIN)())) for _ in "ab")
    assert list(first) == ["label", *KEYS]
    assert first["label"].tolist() == second["label"].tolist() == [0.0] * 64
    for key in KEYS:
        assert first[key].to_lists() == second[key].to_lists()
        assert first[key].num_rows == 64


@pytest.mark.req("NT-MODEL-T1")
def test_records_become_a_label_and_ragged_ids():
    np.random.seed(3)
    found = model._parse_example([generate_ffm_example([5] * 6) for _ in range(4)])
    assert found["label"].shape == (4,)
    assert {(found[key].num_rows, found[key].values.dtype) for key in KEYS} == {(4, torch.int64)}


@pytest.mark.req("NT-MODEL-T2")
def test_predictions_are_those_of_the_rows():
    trainer, _ = trained(5)
    (output,) = trainer.predict()
    assert output.prediction.shape == (64,)
    assert ((output.prediction > 0) & (output.prediction < 1)).all()
    torch.testing.assert_close(output.prediction, recomputed(trainer, output.batch))


@pytest.mark.req("NT-MODEL-T2")
def test_predictions_of_a_fixed_batch_are_known():
    trainer, _ = trained(5)
    (output,) = trainer.predict()
    expected = [0.401483, 0.491891, 0.470782, 0.463266]
    torch.testing.assert_close(output.prediction[:4], torch.tensor(expected), atol=1e-5, rtol=0)


@pytest.mark.req("NT-MODEL-T3")
def test_a_hundred_steps_reduce_the_loss():
    trainer, losses = trained(100)
    assert (len(losses), trainer.run.global_step) == (100, 100)
    assert losses[-1] < losses[0] / 2


@pytest.mark.req("NT-MODEL-T3")
def test_predictions_do_not_depend_on_the_number_of_servers():
    found = []
    for num_ps in (0, 2):
        params = model.FFMParams().task().set(label_high=2)
        with local_train(params, num_ps, steps=5) as trainer:
            found.append(next(trainer.predict()).prediction)
    assert_same_bits(*found)


@pytest.mark.req("NT-MODEL-T3")
def test_prediction_gives_predictions_alone():
    task = make_task()
    specs = []
    inner = task._model
    task._model = lambda *args: specs.append(inner(*args)) or specs[-1]
    list(Trainer(task).predict())
    assert specs[-1].mode == ModeKeys.PREDICT
    assert specs[-1][2:5] == (None, None, ())


@pytest.mark.req("NT-MODEL-T3")
def test_the_serving_receiver_answers_serialized_examples():
    trainer, _ = trained(5)
    receiver = trainer.task.create_serving_input_receiver_fn()()
    np.random.seed(0)
    examples = [generate_ffm_example(model._VOCAB_SIZES, label_high=2) for _ in range(64)]
    columns = receiver.parse({"instances": examples[:3]})
    assert list(receiver.inputs) == ["instances"]
    (all_of_them,) = trainer.predict()
    (output,) = trainer.predict([as_batch(columns, "label")])
    assert output.prediction.tolist() == all_of_them.prediction[:3].tolist()
