import dataclasses
import re
import threading
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
import torch

from monolith import data
from monolith.checkpoint import existing_checkpoints, find
from monolith.cluster.discovery import HostServiceDiscovery
from monolith.errors import NotFoundError
from monolith.native_training import estimator as path
from monolith.native_training.jobs import runner_config
from monolith.native_training.jobs.runner_config import RunnerConfig
from monolith.native_training.tasks.estimator import Estimator
from monolith.native_training.tasks.ffm import FFMParams
from monolith.native_training.tasks.monolith_base_model import EstimatorSpec
from monolith.native_training.tasks.monolith_model import MonolithModel
from monolith.native_training.tasks.native_task import ModelSpec
from monolith.native_training.tasks.run_config import NEEDS, RunConfig
from monolith.train import Hook, Task
from tests.native_training.tasks.native_tasks import Score, columns
from tests.time_limits import AT_ONCE


class Dense(Score):
    """A linear layer over the score, from the same start each time."""

    def __init__(self, params):
        super().__init__(params)
        self.layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.layer.weight)

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def create_model_fn(self):
        def model_fn(features, mode, config):
            _, score = self.lookup()
            out = self.layer((score + 1)[:, None]).squeeze(1)
            return ModelSpec(mode, out, (out - features["label"] * 3).square().sum())

        return model_fn


def local(folder, **options):
    return RunConfig(is_local=True, model_dir=str(folder), **options)


class Count(Hook):
    def __init__(self):
        self.steps = 0

    def after_run(self, ctx, results):
        self.steps += 1


def test_the_import_path_of_the_reference_system_is_ours():
    assert (path.Estimator, path.RunConfig) == (Estimator, RunConfig)
    assert path.EstimatorSpec is EstimatorSpec


def test_two_estimators_begin_with_the_same_model(tmp_path):
    weights = []
    for name in "ab":
        torch.rand(1)
        estimator = Estimator(Prices, local(tmp_path / name)).train(steps=1)
        weights.append(estimator.get_variable_value("model.layer.weight").item())
    assert weights[0] == weights[1]


class Prices(Dense):
    """A linear layer with a random start."""

    def __init__(self, params):
        super().__init__(params)
        self.layer = torch.nn.Linear(1, 1, bias=False)


@pytest.mark.parametrize("num_ps", [0, 2])
def test_training_goes_on_where_it_ended(num_ps, tmp_path):
    estimator = Estimator(Dense.params(), local(tmp_path / "parts", num_ps=num_ps))
    assert estimator.train(steps=1).train(steps=1) is estimator
    whole = Estimator(Dense.params(), local(tmp_path / "whole")).train(steps=2)
    assert find(tmp_path / "parts").step == 2
    name = "model.layer.weight"
    assert estimator.get_variable_value(name) == whole.get_variable_value(name)
    assert [row.tolist() for row in estimator.predict()] == [r.tolist() for r in whole.predict()]


def test_steps_are_those_of_a_call_and_max_steps_those_of_all(tmp_path):
    estimator = Estimator(FFMParams().task(), local(tmp_path))
    steps = []
    for limits in ({"steps": 3}, {"steps": 2}, {"max_steps": 7}, {"max_steps": 7}):
        estimator.train(**limits)
        steps.append(estimator.get_variable_value("global_step").item())
    assert steps == [3, 5, 7, 7]
    assert estimator.result.num_steps == 0
    with pytest.raises(ValueError, match=r"^Can not provide both steps and max_steps.$"):
        estimator.train(1, 1)


def test_an_evaluation_changes_nothing(tmp_path):
    estimator, hook = Estimator(Dense.params(), local(tmp_path)), Count()
    estimator.train(steps=1)
    before = estimator.latest_checkpoint()
    first, second = estimator.evaluate(), estimator.evaluate(steps=1, hooks=[hook])
    assert (first["global_step"], hook.steps) == (1, 1)
    # After a step from 0: rows -1 * (1 - 3) * 2 = 4 and 8, weight 1 + 0.1 * 8.
    assert first["loss"] == pytest.approx((1.8 * 5 - 3) ** 2 + (1.8 * 17 - 3) ** 2, rel=1e-5)
    assert second["loss"] == first["loss"]
    assert (estimator.latest_checkpoint(), estimator.result.num_steps) == (before, 1)


def test_an_evaluation_has_nothing_to_do_with_the_steps_of_the_training(tmp_path):
    params = Dense.params().set(**{"train.max_steps": 1, "train.steps": 1})
    estimator = Estimator(params, local(tmp_path)).train()
    hook = Count()
    assert estimator.evaluate(hooks=[hook])["loss"] > 0
    assert hook.steps == 2


class Stream(Dense):
    """Reads a pipeline, which can resume; `labels` are those of the batches that were read."""

    def create_input_fn(self, mode):
        table = pa.table({"a": [[1]] * 4, "label": [0.0, 1.0, 2.0, 3.0]})
        return lambda: data.arrow_table(table, label="label").batch(1)

    def loss(self, model, inputs, batch):
        self.labels.append(batch.label.item())
        return super().loss(model, inputs, batch)


def test_an_evaluation_reads_its_data_from_the_beginning(tmp_path):
    class Seen(Stream):
        labels = []

    estimator = Estimator(Seen.params(), local(tmp_path)).train(steps=2)
    estimator.evaluate(steps=1)
    estimator.train(steps=1)
    assert Seen.labels == [0.0, 1.0, 0.0, 2.0]


def test_a_warm_start_reads_its_data_from_the_beginning(tmp_path):
    class Seen(Stream):
        labels = []

    Estimator(Seen.params(), local(tmp_path / "a")).train(steps=2)
    start = {"warm_start_from": tmp_path / "a"}
    Estimator(Seen.params(), local(tmp_path / "b"), **start).train(steps=1)
    assert Seen.labels == [0.0, 1.0, 0.0]


def test_an_evaluation_needs_a_batch(tmp_path):
    class Empty(Dense):
        def create_input_fn(self, mode):
            return lambda: self.batches if mode == "train" else []

    estimator = Estimator(Empty.params(), local(tmp_path)).train()
    text = r"expected at least one batch of mode 'eval', got none \(task 'Empty'\)"
    with pytest.raises(ValueError, match=text):
        estimator.evaluate()


def test_predictions_come_by_sample_or_by_batch(tmp_path):
    estimator = Estimator(Dense, local(tmp_path)).train(steps=1)
    assert [round(row.item(), 4) for row in estimator.predict()] == [9.0, 30.6] * 2
    batches = list(estimator.predict(yield_single_examples=False))
    assert [batch.shape for batch in batches] == [(2,), (2,)]


def test_tensors_are_read_from_the_newest_checkpoint(tmp_path):
    estimator = Estimator(Dense.params(), local(tmp_path)).train(steps=1)
    names = estimator.get_variable_names()
    assert {"model.layer.weight", "global_step"} <= set(names)
    value = estimator.get_variable_value("model.layer.weight")
    assert isinstance(value, np.ndarray)
    assert value == pytest.approx(1.8)
    with pytest.raises(NotFoundError, match="expected tensor 'x'"):
        estimator.get_variable_value("x")


@pytest.mark.parametrize(
    ("use", "verb"),
    [
        (lambda e: e.evaluate(), "evaluate"),
        (lambda e: next(e.predict()), "predict"),
        (lambda e: e.get_variable_names(), "get_variable_names"),
        (lambda e: e.get_variable_value("x"), "get_variable_value"),
    ],
)
def test_without_a_checkpoint_there_is_nothing_to_read(use, verb, tmp_path):
    estimator = Estimator(Dense.params(), local(tmp_path))
    assert estimator.latest_checkpoint() is None
    text = rf"^\[Estimator.{verb}\] expected a checkpoint, got none in '.*'; call train first$"
    with pytest.raises(NotFoundError, match=text):
        use(estimator)


def test_checkpoints_come_at_the_pace_of_the_options(tmp_path):
    params = FFMParams().task().set(**{"train.save_checkpoints_secs": 1e9})
    options = {"save_checkpoints_steps": 2, "dense_only_save_checkpoints_steps": 3}
    conf = local(tmp_path, **options, checkpoints_max_to_keep=2)
    Estimator(params, conf).train(steps=7)
    steps = [
        sorted(prefix.rpartition("-")[2] for prefix in existing_checkpoints(folder))
        for folder in (tmp_path, tmp_path / "dense_only")
    ]
    assert steps == [["6", "7"], ["3"]]  # 6 is saved whole


def test_a_warm_start_takes_rows_and_parameters_but_no_step(tmp_path):
    Estimator(Dense.params(), local(tmp_path / "a")).train(steps=1)
    for start in (tmp_path / "a", find(tmp_path / "a").prefix):
        folder = tmp_path / str(len(str(start)))
        estimator = Estimator(Dense.params(), local(folder), warm_start_from=start)
        estimator.train(steps=1)
        assert find(folder).step == 1
        assert estimator.get_variable_value("model.layer.weight") != pytest.approx(1.8)
        estimator.train(steps=1)  # from its own checkpoint, not from the start
        assert find(folder).step == 2


def test_a_new_folder_starts_from_a_checkpoint_of_another(tmp_path):
    source = local(tmp_path / "a", save_checkpoints_steps=1)
    Estimator(FFMParams().task(), source).train(steps=3)
    conf = local(tmp_path / "b", restore_dir=str(tmp_path / "a"), restore_ckpt="model.ckpt-2")
    estimator = Estimator(FFMParams().task(), conf).train(steps=4)
    assert find(tmp_path / "b").step == 6
    assert estimator.latest_checkpoint().startswith(str(tmp_path / "b"))


def test_a_checkpoint_by_name_is_where_training_goes_on_once(tmp_path):
    options = {"save_checkpoints_steps": 1}
    Estimator(FFMParams().task(), local(tmp_path, **options)).train(steps=3)
    conf = local(tmp_path, **options, restore_ckpt="model.ckpt-1")
    for step in (2, 3):
        Estimator(FFMParams().task(), conf).train(steps=1)
        assert find(tmp_path).step == step


def test_overrides_are_parameters_by_dotted_names(tmp_path):
    conf = local(tmp_path, params_override='{"train.max_steps": 2, "train.label_key": "label"}')
    estimator = Estimator(FFMParams().task(), conf).train()
    assert find(tmp_path).step == estimator.params.train.max_steps == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected params_override as JSON, got "),
        ("[1]", "expected params_override as a JSON object of names and values, got '[1]'"),
        ('{"trian.steps": 1}', "got trian.steps (did you mean: [train])"),
    ],
)
def test_bad_overrides_are_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Estimator(Dense.params(), RunConfig(is_local=True, params_override=text))


def test_parameters_of_the_caller_stay_as_they_are(tmp_path):
    params = Dense.params().set(**{"metrics.enable_deep_insight": True})
    estimator = Estimator(params, local(tmp_path, params_override='{"train.max_steps": 2}'))
    assert (params.train.max_steps, params.metrics.enable_deep_insight) == (None, True)
    assert estimator.params.metrics.enable_deep_insight is False
    estimator.close()


def test_options_of_a_model_are_its_parameters(tmp_path):
    class Model(MonolithModel):
        def input_fn(self, mode):
            return [columns()]

        def model_fn(self, features, mode):
            raise AssertionError("not called")

    conf = local(tmp_path, disable_native_metrics=False, enable_fused_layout=True)
    params = Estimator(Model.params(), conf).params
    assert (params.metrics.disable_native_metrics, params.enable_fused_layout) == (False, True)
    text = "expected a MonolithModel for conf.disable_native_metrics=False, got Dense, which has no"
    with pytest.raises(ValueError, match=text):
        Estimator(Dense.params(), conf)


def test_without_a_folder_checkpoints_are_in_a_temporary_one(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    estimator = Estimator(Dense(Dense.params())).train(steps=1)
    assert estimator.model_dir.startswith(str(tmp_path / "Dense-"))


def other(field):
    return {bool: not field.default, int: 5, str: "x"}.get(type(field.default), "x")


@pytest.mark.parametrize("name", list(NEEDS))
def test_options_that_need_a_part_that_is_not_here_are_refused(name):
    (field,) = [field for field in dataclasses.fields(RunConfig) if field.name == name]
    conf = RunConfig(is_local=True, **{name: other(field)})
    with pytest.raises(NotImplementedError) as caught:
        Estimator(Dense.params(), conf)
    assert str(caught.value) == (
        f"[Estimator] expected conf.{name}={field.default!r}, got {other(field)!r}; another value "
        f"needs {NEEDS[name]}"
    )


def test_a_job_needs_the_config_of_a_runner():
    text = r"^\[Estimator\] expected conf.is_local=True, got False; give a RunnerConfig"
    with pytest.raises(NotImplementedError, match=text):
        Estimator(Dense.params(), RunConfig())


def job(folder, server_type="worker", **options):
    return RunnerConfig(server_type, num_ps=1, model_dir=str(folder), **options)


def test_a_job_trains_with_its_overrides_and_the_others_read_its_checkpoints(tmp_path, monkeypatch):
    def discovery_of(conf, psm):
        return HostServiceDiscovery(tmp_path / "discovery")

    monkeypatch.setattr(runner_config, "get_discovery", discovery_of)
    text = '{"train.max_steps": 1}'
    params, hook = Dense.params(), Count()
    server = Estimator(params, job(tmp_path / "model", "ps", params_override=text))
    thread = threading.Thread(target=server.train, daemon=True)
    thread.start()
    conf = job(tmp_path / "model", params_override=text)
    with closing(Estimator(params, conf)) as estimator:
        estimator.train(hooks=[hook])
        thread.join(AT_ONCE)
        assert not thread.is_alive()
        assert server.result is None
        assert (estimator.result.num_steps, hook.steps) == (1, 1)
        assert estimator.latest_checkpoint().endswith("model.ckpt-1")
        assert estimator.evaluate(steps=1)["global_step"] == 1


def test_a_runner_that_is_local_trains_here(tmp_path):
    conf = RunnerConfig(is_local=True, model_dir=str(tmp_path))
    assert Estimator(Dense.params(), conf).train(steps=2).result.num_steps == 2


def test_what_a_process_of_a_job_cannot_do_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^model dir can't be empty\.$"):
        Estimator(Dense.params(), job(""))
    with pytest.raises(NotImplementedError, match=r"warm_start_from=None.*conf\.restore_dir"):
        Estimator(Dense.params(), job(tmp_path), warm_start_from=tmp_path)
    with pytest.raises(ValueError, match="expected max_steps in a job, got steps=3"):
        Estimator(Dense.params(), job(tmp_path)).train(steps=3)


def test_models_are_not_exported():
    text = "it needs the export of a model for serving, which is not there yet"
    with pytest.raises(NotImplementedError, match=text):
        Estimator(Dense.params()).export_saved_model()


@pytest.mark.parametrize("model", ["text", Task, RunConfig().restore_dir])
def test_only_native_tasks_are_taken(model):
    text = r"^\[Estimator\] expected a NativeTask, its class or its parameters, got "
    with pytest.raises(TypeError, match=text):
        Estimator(model)


def test_hooks_are_hooks(tmp_path):
    with pytest.raises(AssertionError, match="expected hooks as a list of Hook, got str"):
        Estimator(Dense.params(), local(tmp_path)).train(hooks=["x"])
