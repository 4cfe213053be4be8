import threading

import pytest
import torch

from monolith.data import Batch
from monolith.errors import AbortedError
from monolith.native_training.tasks.native_task import ModelSpec, as_batch
from monolith.ops import Ragged
from monolith.train import Hook, Trainer, TrainSettings
from tests.native_training.tasks.native_tasks import Score, columns, made, trained, weights


class Dense(Score):
    """A score with a dense layer on top."""

    def __init__(self, params):
        super().__init__(params)
        self.layer = torch.nn.Linear(1, 1)

    def create_model_fn(self):
        def model_fn(features, mode, config):
            _, score = self.lookup()
            out = self.layer(score[:, None]).squeeze(1)
            return ModelSpec(mode, out, (out - features["label"]).square().sum())

        return model_fn


def test_features_are_those_of_the_columns_that_the_model_function_makes():
    task = made()
    assert [(f.name, f.table_config().dim) for f in task.features] == [("a", 1)]


def test_without_an_action_backward_of_the_loss_trains():
    assert weights(trained(made())) == [-2.0, -4.0]  # id 2 comes twice


def test_gradients_that_were_handed_in_train():
    assert weights(trained(made(with_op=True))) == [-2.0, -4.0]


def test_gradients_are_scaled():
    assert weights(trained(made(with_op=True, scale=0.5))) == [-1.0, -2.0]


def test_gradients_that_were_handed_in_are_accumulated():
    trainer = Trainer(made(with_op=True), TrainSettings(accumulate=2))
    trainer.fit()
    assert weights(trainer) == [-1.0, -2.0]  # one step, on the mean of two batches


def test_gradients_that_were_handed_in_are_clipped():
    trainer = Trainer(made(with_op=True, batches=[columns()]), TrainSettings(clip_norm=1.0))
    trainer.fit()
    assert weights(trainer) == pytest.approx([-1 / 5**0.5, -2 / 5**0.5], rel=1e-5)


def test_the_hooks_of_queues_of_the_tasks_tables_are_hooks_of_its_runs():
    class Owner:
        def __init__(self, hooks):
            self.get_queue_hooks = lambda: hooks

    hooks = [Hook(), Hook()]
    task = made(table=Owner(hooks))
    assert list(task.hooks()) == hooks


@pytest.mark.parametrize(("push", "is_other"), [(0, False), (1, True)])
def test_functions_that_are_put_off_overlap_unless_the_run_is_sequential(push, is_other):
    class Deferring(Score):
        def lookup(self):
            self.ctx.add_async_function(lambda: threads.append(threading.current_thread()))()
            return super().lookup()

    threads = []
    Trainer(made(Deferring), TrainSettings(push=push)).fit()
    assert len(threads) == 2
    assert (threads[0] is not threading.current_thread()) == is_other


@pytest.mark.parametrize("push", [0, 1])
def test_a_step_that_is_trained_once_more_puts_its_function_off_once(push):
    class Deferring(Score):
        def lookup(self):
            self.ctx.add_async_function(pushed.append, [len(self.calls)])()
            column, score = super().lookup()
            if len(self.calls) == 2 and failures:
                raise failures.pop()
            return column, score

    pushed, failures = [], [AbortedError("gone")]
    trainer = Trainer(made(Deferring), TrainSettings(push=push))
    assert trainer.fit().num_recoveries == 1
    assert pushed == [3, 4]
    assert weights(trainer) == [-2.0, -4.0]


def test_the_model_function_is_collected_once_and_called_for_each_batch():
    task = made()
    trained(task)
    assert task.calls == [("train", ["a", "label", "price"])] * 3


def test_the_first_batch_is_collected_and_trained():
    task = made(batches=iter([columns()]))
    assert trained(task).run.global_step == 1


def test_the_data_are_opened_again_for_another_run():
    trainer = trained(made())
    trainer.fit()
    assert trainer.run.global_step == 4


def test_prediction_asks_for_predictions_only():
    task = made()
    trainer = trained(task)
    found = [output.prediction.tolist() for output in trainer.predict([as_batch(columns(), "x")])]
    assert found == [[-2.0, -8.0]]
    assert task.calls[-1][0] == "predict"


def test_evaluation_trains_nothing():
    task = made(with_op=True)
    trainer = trained(task)
    trainer.model.eval()
    batch = as_batch(columns(), "label")
    with torch.no_grad():
        loss, _ = task.loss(trainer.model, trainer.trainee.look_up(batch, is_training=True), batch)
    assert (loss.item(), task.calls[-1][0]) == (-10.0, "eval")


def test_modules_of_the_task_are_the_dense_model():
    task = made(Dense)
    before = task.layer.weight.item()
    trainer = trained(task)
    assert set(dict(trainer.model.named_parameters())) == {"layer.weight", "layer.bias"}
    assert task.layer.weight.item() != before


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (lambda score: {"ctr": score}, [-2.0, -8.0]),
        (lambda score: {"ctr": score, "cvr": 2 * score}, [[-2.0, -4.0], [-8.0, -16.0]]),
    ],
)
def test_predictions_of_heads_are_side_by_side(heads, expected):
    trainer = trained(made(heads=heads))
    (output,) = trainer.predict([as_batch(columns(), "label")])
    assert output.prediction.tolist() == expected


def test_hooks_of_the_first_call_are_those_of_the_run():
    hook = Hook()
    assert made(hooks_made=[hook]).hooks() == [hook]


def test_functions_are_put_off_by_a_step():
    pushed, seen = [], []

    class Pushing(Score):
        def create_model_fn(self):
            inner = super().create_model_fn()

            def model_fn(features, mode, config):
                spec = inner(features, mode, config)
                seen.append(list(pushed))
                sample = features["label"][:1]
                push = self.ctx.add_async_function(lambda x: pushed.append(x.item()), [sample])
                return spec._replace(train_op=[spec.train_op, push])

            return model_fn

    task = made(Pushing, with_op=True, batches=[columns(3.0), columns(4.0)])
    trainer = Trainer(task)
    trainer.fit(hooks=task.hooks())
    assert pushed == [3.0, 4.0]
    assert seen == [[], [], [3.0]]  # the first is that of the collecting call


def test_the_name_is_that_of_the_parameters():
    params = Score.params()
    params.name = "clicks"
    assert params.instantiate().name == "clicks"


def test_there_is_no_serving_receiver_by_default():
    assert made().create_serving_input_receiver_fn() is None


def test_columns_of_a_batch_are_ids_labels_times_and_dense_ones():
    time = torch.tensor([5, 6])
    batch = as_batch({**columns(), "req_time": time}, "label")
    assert (list(batch.features), list(batch.labels)) == (["a"], ["label"])
    assert list(batch.dense) == ["price", "req_time"]
    assert batch.time is time


def test_the_model_function_gets_the_time_of_samples():
    label = {"label": torch.ones(1)}
    batch = Batch({"a": Ragged.from_lists([[1]])}, labels=label, time=torch.tensor([5]))
    task = made(batches=[batch])
    trained(task)
    assert task.calls[-1][1] == ["a", "label", "req_time"]


def test_a_task_may_have_no_label():
    task = made()
    task.p.train.label_key = "click"
    assert (made().label, task.label) == (("label",), ())


@pytest.mark.parametrize("value", ["text", torch.tensor(1.0)])
def test_other_columns_are_refused(value):
    text = rf"expected columns as Ragged or .* got {type(value).__name__} in 'x'$"
    with pytest.raises(TypeError, match=text):
        as_batch({"x": value}, "label")


def test_a_task_without_a_name_is_refused():
    params = Score.params()
    params.name = ""
    with pytest.raises(AssertionError, match=r'^Layer params for Score must have a "name"$'):
        params.instantiate()


def test_no_data_are_refused():
    with pytest.raises(ValueError, match=r"expected at least one batch .* got none \(task 'Score'"):
        _ = made(batches=[]).features


def test_a_parameter_beside_modules_is_refused():
    task = made(weight=torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(ValueError, match=r"got one as attribute 'weight' \(task 'Score'\)"):
        task.build()


def test_a_module_with_a_name_that_a_task_uses_is_refused():
    with pytest.raises(ValueError, match=r"got 'dense' \(class Score\)$"):
        made(dense=torch.nn.Linear(1, 1))


def test_an_action_that_was_not_called_is_refused():
    class Forgetful(Score):
        def create_model_fn(self):
            inner = super().create_model_fn()
            return lambda *args: inner(*args)._replace(train_op=None)

    with pytest.raises(ValueError, match="expected the action of apply_embedding_gradients in"):
        trained(made(Forgetful, with_op=True))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"loss": None}, r"expected a loss in mode train, got None \(task 'Broken'\)"),
        ({"predictions": None}, "expected predictions, got none"),
        ({"predictions": {}}, "expected predictions, got none"),
    ],
)
def test_a_model_function_gives_loss_and_predictions(change, text):
    class Broken(Score):
        def create_model_fn(self):
            inner = super().create_model_fn()
            return lambda *args: inner(*args)._replace(**change)

    with pytest.raises(ValueError, match=text):
        trained(made(Broken))
