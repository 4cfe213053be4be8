import json
import math

import pytest
import torch

from monolith.errors import UnavailableError
from monolith.native_training.slots import CollectingFactory, FeatureColumn
from monolith.native_training.tasks.input_data import as_batch
from monolith.native_training.tasks.monolith_base_model import EstimatorSpec, MonolithBaseModel
from monolith.ops import Ragged
from monolith.train import Hook, ReportHook, Run, Trainer, TrainSettings
from monolith.train.driver import drive
from tests.native_training.tasks.native_tasks import SLOT

LABELS = torch.tensor([1.0, 0.0])


def batch():
    ids = Ragged.from_lists([[1], [2, 2]])
    return {"a": ids, "label": LABELS, "uid": torch.tensor([7, 8])}


class Heads(MonolithBaseModel):
    """Two heads over the weight of the ids; `spec` says what the model function returns."""

    def __init__(self, params):
        super().__init__(params)
        self.layer = torch.nn.Linear(1, 2)
        with torch.no_grad():
            self.layer.weight.fill_(1.0)
            self.layer.bias.copy_(torch.tensor([0.0, 1.0]))
        self.spec = two_heads
        self.seen = []

    def input_fn(self, mode):
        return [batch()] * 3

    def model_fn(self, features, mode):
        self.seen.append(sorted(features))
        slot = self.ctx.create_feature_slot(SLOT)
        weight = FeatureColumn(slot, "a").embedding_lookup(slot.add_feature_slice(1))
        return self.spec(self, self.layer(weight), features["label"])


def two_heads(task, logits, label, **options):
    first, second = logits.sigmoid().unbind(1)
    loss = ((first - label) ** 2 + (second - label) ** 2).sum()
    return EstimatorSpec(
        {"x": label, "y": label}, {"x": first, "y": second}, None, loss, sgd, **options
    )


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


def make(spec=two_heads, **params):
    task = Heads(Heads.params().set(**params))
    task.spec = spec
    return task


def train(task, steps=1, **settings):
    trainer = Trainer(task, TrainSettings(steps=steps, **settings))
    return trainer, trainer.fit()


def test_the_defaults_are_those_of_the_reference_system():
    params = Heads.params()
    names = (
        "output_path", "output_fields", "delimiter", "file_name", "enable_grads_and_vars_summary",
        "dense_weight_decay", "clip_norm", "sparse_norm_warmup_steps",
    )  # fmt: skip
    assert [params[name] for name in names] == [None, None, "\t", "", False, 0.0, 1000.0, None]


def test_parameters_are_attributes():
    task = make(clip_norm=3.0)
    assert (task.clip_norm, task.train.label_key, task.delimiter) == (3.0, "label", "\t")
    task.clip_norm = 4.0
    assert task.p.clip_norm == 4.0
    with pytest.raises(AttributeError, match="has no attribute 'clip_norn'"):
        _ = task.clip_norn


def test_an_error_of_a_model_function_is_not_hidden_by_the_parameters():
    def spec(task, logits, label):
        return label.nothing

    with pytest.raises(AttributeError, match="nothing"):
        _ = make(spec).features


def test_the_batch_size_is_that_of_the_mode():
    task = make()
    assert task.batch_size is None
    task.batch_size = 8
    assert task.p.train.per_replica_batch_size == task.p.eval.per_replica_batch_size == 8
    task.p.eval.per_replica_batch_size = 4
    assert task.batch_size == 8
    task.p.mode = "eval"
    assert task.batch_size == 4


def test_an_evaluation_without_a_batch_size_has_that_of_the_training():
    task = make()
    task.p.train.per_replica_batch_size, task.p.mode = 8, "eval"
    assert task.batch_size == 8


def change_of_a_step(**params):
    """How far a step moves the dense model and the rows, each as one vector."""
    task = make(**params)
    before = torch.cat([p.detach().flatten().clone() for p in task.layer.parameters()])
    trainer, _ = train(task)
    after = torch.cat([p.detach().flatten() for p in task.layer.parameters()])
    rows = trainer.features.tables["a"].lookup(torch.tensor([1, 2]))
    return (before - after), rows.flatten()


def test_a_step_is_clipped_by_the_norm_of_model_and_tables():
    dense, rows = change_of_a_step()
    norm = torch.cat([dense, rows]).norm().item()
    clipped, clipped_rows = change_of_a_step(clip_norm=norm / 4)
    torch.testing.assert_close(clipped, dense / 4)
    torch.testing.assert_close(clipped_rows, rows / 4)


def test_the_norm_of_tables_is_warmed_up():
    dense, _ = change_of_a_step()
    warm, rows = change_of_a_step(sparse_norm_warmup_steps=10)
    torch.testing.assert_close(warm, dense)
    assert rows.tolist() == [0.0, 0.0]


def test_dense_weights_decay():
    dense, rows = change_of_a_step()
    decayed, same_rows = change_of_a_step(dense_weight_decay=0.5)
    torch.testing.assert_close(decayed - dense, 0.5 * torch.tensor([1.0, 1.0, 0.0, 1.0]))
    torch.testing.assert_close(rows, same_rows)


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("clip_norm", -1, ValueError, r"params\.clip_norm >= 0, got -1"),
        ("clip_norm", math.nan, ValueError, "params.clip_norm >= 0, got nan"),
        ("dense_weight_decay", None, TypeError, "params.dense_weight_decay as int or float, got N"),
        ("sparse_norm_warmup_steps", 0, ValueError, "params.sparse_norm_warmup_steps > 0, got 0"),
        ("default_occurrence_threshold", -1, ValueError, "occurrence_threshold >= 0, got -1"),
        ("output_path", 3, TypeError, "params.output_path as str or PathLike or None, got 3"),
        ("metrics.disable_native_metrics", "x", TypeError, "disable_native_metrics as bool, got"),
    ],
)
def test_a_value_that_cannot_be_is_refused_at_the_start(name, value, error, text):
    with pytest.raises(error, match=rf"expected .*{text}"):
        make(**{name: value})


def test_a_folder_for_predictions_that_cannot_be_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"^\[output_path\] expected a folder to write to"):
        Trainer(make(output_path=str(tmp_path / "file")))


def test_norms_are_figures():
    _, result = train(make(enable_grads_and_vars_summary=True))
    dense, rows = change_of_a_step()
    figures = result.figures.metrics
    norm = torch.cat([dense, rows]).norm().item()
    assert figures["global_gradient_norm"] == pytest.approx(norm)
    assert figures["var_norm/layer.weight"] == pytest.approx(math.sqrt(2))
    assert figures["grad_norm/layer.weight"] == pytest.approx(dense[:2].norm().item())
    assert "auc" not in train(make())[1].figures.metrics


def test_a_run_that_does_not_train_has_no_norms():
    _, result = train(make(enable_grads_and_vars_summary=True, mode="eval"))
    assert "global_gradient_norm" not in result.figures.metrics


def test_heads_have_metrics_on_request():
    task = make(**{"metrics.disable_native_metrics": False})
    trainer, result = train(task, steps=3)
    assert {*result.figures.metrics} == {"x_auc", "y_auc"}
    assert task.seen[-1] == ["a", "label", "uid"]
    evaluation = trainer.evaluate()
    prediction = next(trainer.predict()).prediction
    expected = float(prediction[0, 0] > prediction[1, 0])
    assert evaluation["x_auc"] == expected


def test_a_prediction_without_labels_leaves_the_metrics_of_heads():
    def spec(task, logits, label):
        is_prediction = not torch.is_grad_enabled() and task.is_predicting
        return two_heads(task, logits, label)._replace(**{"label": None} if is_prediction else {})

    task = make(spec, **{"metrics.disable_native_metrics": False})
    task.is_predicting = True
    trainer, _ = train(task)
    list(trainer.predict())
    task.is_predicting = False
    assert {*trainer.evaluate()} == {"loss", "x_auc", "y_auc"}


def test_a_head_that_is_no_classification_has_a_squared_error():
    def spec(task, logits, label):
        return two_heads(task, logits, label)._replace(classification=False)

    task = make(spec, **{"metrics.disable_native_metrics": False})
    trainer, _ = train(task)
    figures, output = trainer.evaluate(), next(trainer.predict())
    for i, head in enumerate("xy"):
        expected = (output.prediction[:, i] - LABELS).square().mean().item()
        assert figures[f"{head}_mse"] == pytest.approx(expected)


def test_one_head_and_heads_in_lists_have_the_names_of_the_spec():
    def one(task, logits, label):
        pred = logits[:, 0].sigmoid()
        return EstimatorSpec(label, pred, "ctr", pred.sum(), sgd)

    def two(task, logits, label):
        pred = list(logits.sigmoid().unbind(1))
        return EstimatorSpec([label, label], pred, "ctr,cvr", pred[0].sum(), sgd)

    on = {"metrics.disable_native_metrics": False}
    assert set(train(make(one, **on))[1].figures.metrics) == {"ctr_auc"}
    assert set(train(make(two, **on))[1].figures.metrics) == {"ctr_auc", "cvr_auc"}


def test_a_regression_has_no_metrics_of_a_classification():
    def spec(task, logits, label):
        return EstimatorSpec(label, 5 * logits[:, 0], "r", logits.sum(), sgd, classification=False)

    task = make(spec)
    assert train(task)[1].figures.metrics == {}


def test_prediction_and_evaluation_write_lines(tmp_path):
    task = make(output_path=str(tmp_path), output_fields="uid", delimiter=";", file_name="out")
    trainer, _ = train(task)
    assert list(tmp_path.iterdir()) == []
    trainer.evaluate([as_batch(batch(), "label")])
    (output,) = trainer.predict([as_batch(batch(), "label")])
    lines = (tmp_path / "out-00000").read_text().splitlines()
    rows = [[float(part) for part in line.split(";")] for line in lines]
    expected = [[uid, *row] for uid, row in zip((7, 8), output.prediction.tolist(), strict=True)]
    assert rows == [pytest.approx(row) for row in expected * 2]


def with_output(task, logits, label):
    task.add_extra_output("logits", logits, head_name="x")
    if task.p.file_name == "twice":
        task.add_extra_output("logits", logits)
    return two_heads(task, logits, label)


def export(task, *, is_exporting=True):
    """The extra outputs of a run that calls the model function in prediction."""
    specs = []

    def call():
        if specs:
            raise StopIteration
        task.ctx.feature_factory = CollectingFactory(2, device="cpu")
        specs.append(task.create_model_fn()(batch(), "predict", None))

    drive(call, [], run=Run(is_exporting=is_exporting))
    return specs[0].export_outputs


def test_a_run_that_exports_has_extra_outputs(tmp_path):
    outputs = export(make(with_output, output_path=str(tmp_path)))
    assert set(outputs) == {"logits"}
    assert outputs["logits"].head_name == "x"
    assert outputs["logits"].outputs.shape == (2, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_does_not_export_has_none():
    assert export(make(with_output, file_name="twice"), is_exporting=False) == {}


def test_an_extra_output_has_a_name_of_its_own():
    with pytest.raises(KeyError, match="key logits exists!"):
        export(make(with_output, file_name="twice"))


class KafkaMetricHook(Hook):
    """A hook as users of the reference system define it."""


class FileMetricHook(Hook):
    """A hook as users of the reference system define it."""


def test_of_metric_hooks_the_first_of_each_kind_counts():
    reports, kinds = ReportHook(), [KafkaMetricHook, FileMetricHook, KafkaMetricHook]
    hooks = [*(kind() for kind in kinds), reports, reports]

    def spec(task, logits, label):
        for hook in hooks:
            task.add_training_hook(hook)
        return two_heads(task, logits, label)

    assert make(spec).hooks()[-4:] == [hooks[0], hooks[1], reports, reports]


def test_records_of_deep_insight_have_the_labelled_heads():
    def one_label(task, logits, label):
        spec = two_heads(task, logits, label)
        return spec._replace(label={"y": label})

    metrics = {"enable_deep_insight": True, "deep_insight_sample_ratio": 1.0}
    task, records = make(one_label, **{f"metrics.{k}": v for k, v in metrics.items()}), []
    of_samples = {"req_time": torch.tensor([1, 2]), "sample_rate": torch.ones(2)}
    task.input_fn = lambda mode: [{**batch(), **of_samples}] * 2
    task.deep_insight_sink = records.append
    with Trainer(task) as trainer:
        trainer.fit()
    first, *_ = map(json.loads, records)
    assert (len(records), first["uid"], first["label"]) == (4, 7, {"y": 1.0})
    assert list(first["predict"]) == ["y"]
