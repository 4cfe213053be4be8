import dataclasses
import json
import re
import threading

import pyarrow as pa
import pytest
import torch

from monolith import data
from monolith.checkpoint import existing_checkpoints, find
from monolith.data import Batch
from monolith.native_training.slots import FeatureColumn
from monolith.native_training.tasks import local_train, native_task
from monolith.native_training.tasks.input_data import as_batch
from monolith.native_training.tasks.native_task import ModelSpec, NativeTask
from monolith.native_training.tasks.task_context import NativeTaskContext, with_ctx
from monolith.native_training.tasks.task_settings import NativeSettings
from monolith.observe.metrics import MemorySink
from monolith.ops import Ragged
from monolith.table import Constant
from monolith.train import Hook, Trainer, TrainSettings
from tests.native_training.tasks.native_tasks import SLOT, Score, columns, made, trained, weights


class Dense(Score):
    """A score with a dense layer on top."""

    def __init__(self, params):
        super().__init__(params)
        self.layer, self.modes, self.are_training = torch.nn.Linear(1, 1), [], []

    def create_model_fn(self):
        def model_fn(features, mode, config):
            self.modes.append(mode)
            self.are_training.append(self.layer.training)
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
    assert list(task.hooks())[:2] == hooks  # before those of parameters


def test_the_hooks_of_a_table_that_the_model_function_makes_are_hooks_of_the_run():
    class Table:
        def get_queue_hooks(self):
            return [hook]

    class MakesTable(Score):
        def lookup(self):
            self.table = Table()
            return super().lookup()

    hook = Hook()
    assert hook in made(MakesTable).hooks()


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
    *_, last = made(hooks_made=[hook]).hooks()
    assert last is hook


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


class Changed(Score):
    """A score whose specs have other results in some modes."""

    change, modes = {"predictions": None}, ("train",)

    def create_model_fn(self):
        inner = super().create_model_fn()

        def model_fn(features, mode, config):
            spec = inner(features, mode, config)
            return spec._replace(**self.change) if mode in self.modes else spec

        return model_fn


def test_a_model_function_gives_a_loss():
    text = r"expected a loss in mode train, got None \(task 'Changed'\)"
    with pytest.raises(ValueError, match=text):
        trained(made(Changed, change={"loss": None}))


@pytest.mark.req("NT-MODEL-T4")
@pytest.mark.parametrize("predictions", [None, {}])
def test_training_needs_no_predictions(predictions, caplog):
    task = made(Changed, with_op=True, change={"predictions": predictions})
    trainer = trained(task)
    assert weights(trainer) == [-2.0, -4.0]
    assert (trainer.result.num_samples, dict(trainer.result.figures.metrics)) == (4, {})
    assert [r.getMessage() for r in caplog.records if r.name == "monolith.train.figures"] == [
        "auc, log_loss, calibration are left out: the task has no predictions; choose others in "
        "Task.metrics"
    ]


@pytest.mark.req("NT-MODEL-T4")
@pytest.mark.parametrize("mode", ["eval", "predict"])
def test_other_modes_need_predictions(mode):
    trainer = trained(made(Changed, modes=("train", "eval", "predict")))
    text = rf"expected predictions in mode {mode}, got none \(task 'Changed'\); only training"
    with pytest.raises(ValueError, match=text):
        trainer.evaluate() if mode == "eval" else list(trainer.predict())


class Prices(NativeTask):
    """A linear model of a dense column, without a slot."""

    def __init__(self, params):
        super().__init__(params)
        self.layer = torch.nn.Linear(1, 1)
        torch.nn.init.zeros_(self.layer.weight)

    def create_input_fn(self, mode):
        return lambda: [columns(), columns()]

    def create_model_fn(self):
        def model_fn(features, mode, config):
            pred = self.layer(features["price"][:, None]).squeeze(1)
            return ModelSpec(mode, pred, (pred - features["label"]).square().sum())

        return model_fn

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.req("NT-MODEL-T4")
@pytest.mark.parametrize("num_ps", [0, 2])
def test_a_task_without_a_slot_trains(num_ps):
    with local_train(Prices, num_ps, steps=1) as trainer:
        assert trainer.features.num_rows() == 0
        assert trainer.model.layer.weight.item() != 0


@pytest.mark.req("NT-MODEL-T4")
@pytest.mark.parametrize("missing", [None, "initial"])
def test_a_new_id_reads_zeros_unless_the_task_says_otherwise(missing):
    values = []

    class New(Score):
        def lookup(self):
            config = dataclasses.replace(SLOT, default_vec_initializer=Constant(3.0))
            slot = self.ctx.create_feature_slot(config)
            column = FeatureColumn(slot, "a")
            values.append(column.embedding_lookup(slot.add_feature_slice(1)).squeeze(1))
            return column, values[-1]

    if missing is not None:
        New.missing = missing
    trained(made(New), steps=1)
    assert values[-1].tolist() == ([0.0, 0.0] if missing is None else [3.0, 6.0])


def test_other_modes_read_zeros_whatever_training_reads():
    class Initial(Score):
        missing = "initial"

    task = with_params(Initial, mode="eval")
    assert (Trainer(task).features.missing, made(Initial).missing) == ("zeros", "initial")


def with_params(cls=Score, **values):
    return cls.params().set(**{k.replace("__", "."): v for k, v in values.items()}).instantiate()


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ({"train__steps": 1}, 2),
        ({"train__max_steps": 1}, 1),
        ({"train__steps": 2, "train__max_steps": 3}, 3),
    ],
)
def test_steps_are_those_of_a_run_and_the_most_of_all_runs(values, steps):
    trainer = Trainer(with_params(**values))
    for _ in range(2):
        trainer.fit()
    assert trainer.run.global_step == steps


def test_data_that_end_are_opened_again_with_repeat():
    trainer = Trainer(with_params(train__repeat=True), TrainSettings(steps=7))
    assert (trainer.fit().num_steps, trainer.result.ended) == (7, "steps")


def test_data_without_a_batch_are_not_repeated():
    task = with_params(train__repeat=True)
    task.batches = iter([columns()])  # ends, and gives nothing more
    assert trained(task).run.global_step == 1


@pytest.mark.parametrize(
    "values",
    [
        {"eval__steps": 1},
        {"input__eval_examples": 3, "eval__per_replica_batch_size": 2},
        {"input__eval_examples": 2, "train__per_replica_batch_size": 2},
    ],
)
def test_an_evaluation_has_the_number_of_batches_that_the_parameters_say(values):
    assert len(list(with_params(**values).source("eval"))) == 1
    assert len(list(with_params().source("eval"))) == 2


def test_a_number_of_samples_needs_a_batch_size():
    task = with_params(input__eval_examples=3)
    text = "expected params.eval.per_replica_batch_size with params.input.eval_examples=3, got None"
    with pytest.raises(ValueError, match=text):
        task.source("eval")


def test_evaluations_come_between_steps_if_the_parameters_say_so():
    trainer = Trainer(with_params(eval__steps_per_eval=2))
    assert list(trainer.fit().evaluations) == [2]


@pytest.mark.req("NT-MODEL-T4")
@pytest.mark.parametrize(
    ("values", "saved"),
    [
        ({"train__save_checkpoints_steps": 2}, ["2", "4", "5"]),
        ({"train__save_checkpoints_secs": 1e-9}, ["1", "2", "3", "4", "5"]),
        ({}, ["5"]),
    ],
)
def test_checkpoints_are_saved_at_the_pace_of_the_parameters(tmp_path, values, saved):
    task = with_params(**values)
    task.batches = [columns()] * 5
    settings = TrainSettings(checkpoint_dir=str(tmp_path))
    with Trainer(task, settings) as trainer:
        trainer.fit()
    assert steps_of(tmp_path) == saved


def steps_of(folder):
    return sorted(prefix.rpartition("-")[2] for prefix in existing_checkpoints(folder))


@pytest.mark.req("NT-MODEL-T4")
def test_checkpoints_of_dense_parameters_lie_apart_and_have_no_tables(tmp_path):
    task = with_params(
        Dense, train__save_checkpoints_steps=4, train__dense_only_save_checkpoints_steps=2
    )
    task.batches = [columns()] * 7
    settings = TrainSettings(checkpoint_dir=str(tmp_path))
    with Trainer(task, settings) as trainer:
        trainer.fit()
    assert steps_of(tmp_path) == ["4", "7"]
    assert steps_of(tmp_path / "dense_only") == ["2", "6"]  # 4 has all; the end is saved whole
    checkpoint = find(tmp_path / "dense_only")
    assert checkpoint.table_names == []
    assert "model.layer.weight" in checkpoint.tensors


def test_checkpoints_of_dense_parameters_have_a_pace_in_seconds(tmp_path):
    task = with_params(Dense, train__dense_only_save_checkpoints_secs=1e-9)
    task.batches = [columns()] * 3
    settings = TrainSettings(checkpoint_dir=str(tmp_path))
    with Trainer(task, settings) as trainer:
        trainer.fit()
    assert steps_of(tmp_path / "dense_only")[:2] == ["1", "2"]


def test_checkpoints_need_a_folder():
    text = (
        "[NativeTask] expected a folder for the checkpoints of "
        "params.train.dense_only_save_checkpoints_secs=5, got none (task 'Score'); set "
        "TrainSettings.checkpoint_dir, --checkpoints or model_dir"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        Trainer(with_params(train__dense_only_save_checkpoints_secs=5))


@pytest.mark.req("NT-MODEL-T4")
@pytest.mark.parametrize(("index", "step"), [(0, 0), (1, 6), (3, 13)])
def test_a_worker_waits_for_the_step_of_its_index(index, step, monkeypatch):
    waits = []
    monkeypatch.setattr(
        native_task, "CustomGlobalStepWaiterHook", lambda n: waits.append(n) or Hook()
    )
    with with_ctx(NativeTaskContext(num_workers=4, worker_index=index)):
        trained(with_params(train__slow_start_steps=10))
    assert waits == [step]


def test_the_first_worker_starts_at_once():
    assert trained(with_params(train__slow_start_steps=10**9)).run.global_step == 2


@pytest.mark.parametrize(("mode", "called"), [("eval", "eval"), ("infer", "predict")])
def test_other_modes_change_nothing(mode, called, tmp_path):
    task = with_params(Dense, mode=mode)
    before = [p.tolist() for p in task.build().parameters()]
    with Trainer(task, TrainSettings(checkpoint_dir=str(tmp_path))) as trainer:
        result = trainer.fit()
        assert trainer.features.num_rows() == 0
    assert [p.tolist() for p in task.build().parameters()] == before
    assert (result.num_steps, list(tmp_path.iterdir())) == (2, [])
    assert [str(mode) for mode in task.modes][-2:] == [called] * 2
    assert task.are_training[-2:] == [False, False]
    assert (result.figures.loss > 0) is (mode == "eval")


class Stream(Score):
    """A score over a pipeline, which can resume."""

    def create_input_fn(self, mode):
        table = {"a": [[1], [2, 2]] * 4, "label": [float(i) for i in range(8)]}
        return lambda: data.arrow_table(pa.table(table), label="label").batch(2)


def test_a_pipeline_goes_on_after_the_last_trained_batch(tmp_path):
    class Seen(Stream):
        labels = []

        def loss(self, model, inputs, batch):
            self.labels.append(int(batch.label[0]))
            return super().loss(model, inputs, batch)

    for _ in range(2):
        with local_train(Seen, model_dir=str(tmp_path), steps=2):
            pass
    assert Seen.labels == [0, 2, 4, 6]


@pytest.mark.parametrize(("is_enabled", "number"), [(True, 2), (False, 0)])
def test_steps_are_counted_in_the_sink_of_the_trainer(is_enabled, number):
    sink = MemorySink()
    with Trainer(with_params(metrics__enable_throughput_hook=is_enabled), metrics=sink) as trainer:
        trainer.fit()
    tags = {"model_name": "di_name_Score", "cluster_type": "stable"}
    assert sink.total("monolith.training.run_steps.all", tags) == number


@pytest.mark.parametrize(("is_enabled", "number"), [(True, 1), (False, 0)])
def test_steps_are_traced_where_the_task_has_a_folder_for_it(is_enabled, number, tmp_path):
    task = with_params(metrics__enable_tf2_profiler_hook=is_enabled)
    task.profile_dir = str(tmp_path)
    task.batches = [columns()] * 503  # the first trace begins after 500 steps
    trained(task)
    assert len(list(tmp_path.glob("*.pt.trace.json"))) == number


def test_settings_of_the_command_line_are_parameters():
    settings = NativeSettings({"train": "clicks"}, params={"train.steps": 3})
    task = Score.from_settings(settings)
    assert (task.p.train.steps, task.p.train.file_pattern, task.settings) == (3, "clicks", settings)
    text = r"got 'params.trian.steps': trian.steps \(did you mean: \[train\]\)$"
    with pytest.raises(ValueError, match=text):
        Score.from_settings(NativeSettings(params={"trian.steps": 3}))


def test_records_of_several_heads_have_their_names():
    records = []
    task = with_params(
        metrics__enable_deep_insight=True,
        metrics__deep_insight_sample_ratio=1.0,
        metrics__deep_insight_name="ctr",
        metrics__extra_fields_keys=["price"],
    )
    task.deep_insight_sink = records.append
    task.hooks()
    one, ones = torch.tensor([7]), torch.ones(1)
    batch = {"uid": one, "req_time": one, "sample_rate": ones, "price": ones}
    (send,) = task.deep_insight_actions(batch, {"x": ones, "y": ones * 2}, {"x": ones, "y": ones})
    send()
    (record,) = map(json.loads, records)
    assert record["label"] == {"x": 1.0, "y": 2.0}
    assert (record["model_name"], record["extra_float"]) == ("ctr", {"price": 1.0})


class Numbers(NativeTask):
    """Its input function yields numbers, and a number is the action of its step."""

    def create_input_fn(self, mode):
        return lambda: [5, torch.tensor([7, 8])]

    def create_model_fn(self):
        def model_fn(features, mode, config):
            return ModelSpec(mode, loss=torch.zeros(()), train_op=lambda: self.note(features))

        return model_fn

    def note(self, features):
        type(self).noted.append(features.tolist())


def test_inputs_without_names_reach_the_model_function_as_they_are():
    Numbers.noted = []
    with Trainer(made(Numbers)) as trainer:
        assert trainer.fit().num_samples == 2
    assert Numbers.noted == [5, [7, 8]]
