"""Tasks of the reference system, whose imports are changed; examples/reference has them."""

import ast
import json

import pytest
import torch

from monolith.cli.tasks.task_file import load_task_class
from monolith.native_training.cpu_training import local_train
from monolith.native_training.estimator import Estimator, RunConfig
from monolith.train import Mode, Trainer, TrainSettings
from tests.cli.run import run
from tests.meta.tree import ROOT

TASKS = {"ffm": "FFMTask", "multi_head": "ClicksAndLikes", "no_slots": "Prices"}


def path(name):
    return str(ROOT / f"examples/reference/{name}.py")


def make(name, **params):
    torch.manual_seed(0)
    return load_task_class(path(name)).params().set(**params).instantiate()


def losses(task, steps):
    """The loss before and after training, over the data of evaluation."""
    with Trainer(task, TrainSettings(steps=steps)) as trainer:
        before = trainer.evaluate()
        trainer.fit()
        return before["loss"], trainer.evaluate()["loss"]


@pytest.mark.parametrize(
    ("name", "steps", "share"),
    [("ffm", 300, 0.8), ("multi_head", 150, 0.8), ("no_slots", 300, 0.5)],
)
def test_the_loss_falls(name, steps, share):
    before, after = losses(make(name), steps)
    assert after < share * before


@pytest.fixture
def train(capsys, monkeypatch, tmp_path):
    """The result of the command that trains an example, as a dictionary."""

    def call(name, *settings):
        flags = [flag for setting in settings for flag in ("--set", setting)]
        monkeypatch.chdir(tmp_path)
        result = run(capsys, monkeypatch, "train", path(name), "--json", *flags)
        assert result.status == 0, result.err
        return json.loads(result.out.splitlines()[-1])

    return call


@pytest.mark.parametrize("name", TASKS)
def test_the_command_line_trains_the_file_the_same_each_time(train, name):
    first, second = (train(name, "train.steps=20") for _ in range(2))
    assert first["num_steps"] == 20
    assert first["figures"]["loss"] == second["figures"]["loss"]


@pytest.mark.parametrize("name", TASKS)
def test_the_command_line_changes_parameters(train, name):
    size = "params.train.per_replica_batch_size=16"
    assert train(name, "train.steps=2", size)["num_samples"] == 32


def test_fused_layouts_train_as_slices_do():
    before, after = losses(make("multi_head", enable_fused_layout=True), 150)
    assert after < 0.8 * before


def test_the_heads_have_metrics():
    task = make("multi_head")
    with Trainer(task, TrainSettings(steps=150)) as trainer:
        trainer.fit()
        figures = trainer.evaluate()
    assert set(figures) == {"loss", "ctr_auc", "like_auc"}
    assert min(figures["ctr_auc"], figures["like_auc"]) > 0.6


def test_servers_train_it_too():
    with local_train(make("multi_head"), num_ps=2, steps=3) as trainer:
        assert set(trainer.features.tables) == {"f_user", "f_item"}
        assert trainer.run.global_step == 3


def test_an_estimator_trains_and_evaluates_it(tmp_path):
    estimator = Estimator(make("multi_head").p, RunConfig(is_local=True, model_dir=str(tmp_path)))
    estimator.train(steps=2)
    assert {"ctr_auc", "like_auc"} <= set(estimator.evaluate(steps=1))


def test_predictions_are_written(tmp_path):
    task = make("multi_head", output_path=str(tmp_path), output_fields="f_user,hour")
    with Trainer(task, TrainSettings(steps=1)) as trainer:
        trainer.fit()
        list(trainer.predict(trainer.task.source(Mode.PREDICT)))
    lines = (tmp_path / "part-00000").read_text().splitlines()
    assert len(lines) == 2 * 256
    assert all(len(line.split("\t")) == 4 for line in lines)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_the_import_paths_of_the_reference_system(name):
    tree = ast.parse((ROOT / f"examples/reference/{name}.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    doors = ("monolith.native_training", "monolith.base_model", "monolith.core", "monolith.model")
    assert any(module.startswith(doors) for module in modules)
    assert load_task_class(path(name)).__name__ == TASKS[name]
