import re

import pytest
import torch

from monolith.checkpoint import existing_checkpoints, find
from monolith.cluster import LocalServers
from monolith.errors import FailedPreconditionError
from monolith.native_training.tasks import local_train
from monolith.native_training.util.instantiable_params import InstantiableParams
from monolith.train import Trainer, TrainSettings
from tests.native_training.tasks.native_tasks import Score
from tests.train.tasks import Clicks, Raise, clicks, state_of

AT_100 = {"clock": lambda: 100}


def timed(number):
    return clicks(number, time=torch.full((8,), 100))


@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_rows_and_parameters_do_not_depend_on_the_number_of_servers(num_ps):
    with local_train(Clicks(timed(6))) as alone, local_train(Clicks(timed(6)), num_ps) as spread:
        assert state_of(spread) == state_of(alone)
        assert len(spread.servers) == num_ps
        assert spread.result.num_steps == 6


def test_servers_hold_tables_and_dense_parameters():
    with LocalServers(2) as servers, local_train(Clicks(), servers=servers) as trainer:
        assert [servers[i].table_names for i in range(2)] == [["item", "user"]] * 2
        assert [servers[i].parameter_names for i in range(2)] == [["weight"], ["bias"]]
        assert trainer.model.weight is servers[0].parameter("weight", torch.zeros(1, 9))


def test_a_second_run_on_the_same_servers_continues():
    batches = timed(8)
    with Trainer(Clicks(batches), **AT_100) as whole, LocalServers(2) as servers:
        whole.fit()
        for part in (batches[:5], batches[5:]):
            with local_train(Clicks(part), 2, servers=servers) as trainer:
                pass
        assert state_of(trainer) == state_of(whole)


def test_servers_of_its_own_are_closed_with_the_trainer():
    with local_train(Clicks(), 2) as trainer:
        pass
    with pytest.raises(FailedPreconditionError, match="expected an open server"):
        trainer.servers[0].parameter("weight", torch.zeros(1))


def test_a_run_that_fails_closes_the_trainer():
    with pytest.raises(KeyError):
        local_train(Clicks(), hooks=[Raise(2, KeyError("hook"))])


@pytest.mark.parametrize("steps", [2, None])
def test_steps_are_those_of_the_call(steps):
    with local_train(Clicks(), steps=steps, settings=TrainSettings(steps=3)) as trainer:
        assert trainer.result.num_steps == (steps or 6)


def test_a_class_or_parameters_make_the_task():
    params = InstantiableParams(Clicks)
    for given in (Clicks, params):
        with local_train(given, steps=1) as trainer:
            assert isinstance(trainer.task, Clicks)


def first_weight(seed):
    torch.rand(1)  # the state of the generator before the call does not matter
    task, settings = Layer.params(), TrainSettings(seed=seed)
    with local_train(task, steps=1, settings=settings) as trainer:
        return trainer.task.first_weight


class Layer(Score):
    def __init__(self, params):
        super().__init__(params)
        self.layer = torch.nn.Linear(1, 1)
        self.first_weight = self.layer.weight.item()


def test_the_seed_is_that_of_modules_of_a_native_task_too():
    first, same, other = map(first_weight, (1, 1, 2))
    assert first == same
    assert first != other


def test_what_is_no_task_is_refused():
    text = "[local_train] expected a Task, its class or its parameters, got str"
    with pytest.raises(TypeError, match=re.escape(text)):
        local_train("task")


def test_the_number_of_servers_must_be_theirs():
    text = r"\[local_train\] expected num_ps 2 or none, got 3$"
    with LocalServers(2) as servers, pytest.raises(ValueError, match=text):
        local_train(Clicks(), 3, servers=servers)
    with pytest.raises(ValueError, match=r"\[local_train\] expected num_ps >= 0, got -1$"):
        local_train(Clicks(), -1)


def test_tied_parameters_are_one_on_a_server():
    class Tied(Clicks):
        def build(self):
            model = torch.nn.ModuleDict({"a": torch.nn.Linear(9, 1), "b": torch.nn.Linear(9, 1)})
            model["b"].weight = model["a"].weight
            model["a"].bias.requires_grad_(False)
            return model

        def loss(self, model, inputs, batch):
            x = torch.cat([inputs.pooled.joined, inputs.dense], 1)
            both = model["a"](x) + model["b"](x)
            return both.square().mean(), both

        def metrics(self):
            return {}

    with Trainer(Tied(), servers=2) as trainer:
        assert trainer.model["a"].weight is trainer.model["b"].weight
        before = trainer.model["a"].bias.clone()
        trainer.fit()
        assert torch.equal(trainer.model["a"].bias, before)
        names = [name for i in range(2) for name in trainer.servers[i].parameter_names]
    assert sorted(names) == ["a.bias", "a.weight", "b.bias"]


@pytest.mark.parametrize("num_ps", [0, 2])
def test_a_second_call_goes_on_from_the_checkpoints_of_the_first(num_ps, tmp_path):
    with local_train(Clicks(timed(8)), steps=None) as whole:
        expected = state_of(whole)
    for part in (timed(8)[:5], timed(8)[5:]):
        with local_train(Clicks(part), num_ps, str(tmp_path), steps=None) as trainer:
            pass
        steps = trainer.run.global_step
    assert steps == 8
    assert find(tmp_path).step == 8
    with Trainer(Clicks()) as restored:
        restored.restore(tmp_path)
        assert state_of(restored) == expected


def test_steps_are_those_of_each_call(tmp_path):
    for step in (2, 4):
        with local_train(Clicks(), model_dir=str(tmp_path), steps=2) as trainer:
            assert (trainer.run.global_step, trainer.result.ended) == (step, "steps")


def test_checkpoints_come_at_the_pace_of_the_call(tmp_path):
    with local_train(Clicks(), model_dir=str(tmp_path), save_checkpoints_steps=2, steps=5):
        pass
    prefixes = existing_checkpoints(tmp_path)
    assert sorted(prefix.rpartition("-")[2] for prefix in prefixes) == ["2", "4", "5"]


def test_the_pace_of_the_call_replaces_the_seconds_of_the_settings(tmp_path):
    settings = TrainSettings(save_seconds=3600, busy_save="wait")
    options = {"save_checkpoints_steps": 2, "steps": 4, "settings": settings}
    with local_train(Clicks(), model_dir=str(tmp_path), **options):
        pass
    prefixes = existing_checkpoints(tmp_path)
    assert sorted(prefix.rpartition("-")[2] for prefix in prefixes) == ["2", "4"]


def test_a_folder_is_deleted_first_where_that_is_asked_for(tmp_path):
    (tmp_path / "old").write_text("")
    for step in (2, 2):
        options = {"model_dir": str(tmp_path), "remove_model_dir_if_exists": True}
        with local_train(Clicks(), **options, steps=2) as trainer:
            assert trainer.run.global_step == step
    assert not (tmp_path / "old").exists()


def test_a_folder_to_delete_need_not_exist(tmp_path):
    options = {"model_dir": str(tmp_path / "new"), "remove_model_dir_if_exists": True}
    with local_train(Clicks(), **options, steps=2) as trainer:
        assert trainer.run.global_step == 2
