import random

import pytest
import torch

from monolith.data import Batch
from monolith.native_training.model import FFMParams
from monolith.native_training.sync_training_hooks import EOF_KEY, EofAwareTask
from monolith.ops import Ragged
from monolith.train import Mode, Trainer, TrainSettings
from monolith.train.driver import Run
from tests.native_training.hooks.eof_calls import adding, estimated
from tests.native_training.tasks.native_tasks import columns, made

CALLS = "tests.native_training.hooks.eof_calls"


pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.req("TS-STRH-T1")
def test_every_element_is_trained():
    assert estimated(EofAwareTask(adding(1, 2, 3))) == 6


@pytest.mark.req("TS-STRH-T2")
def test_every_element_that_is_a_dictionary_is_trained():
    elements = [{"1": torch.tensor(x)} for x in (1, 2, 3)]
    assert estimated(EofAwareTask(adding(*elements))) == 6


@pytest.mark.dist
@pytest.mark.req("NT-STRH-T4")
def test_uneven_ranks_stop_after_the_end_of_the_shorter_one(rank_forks, tmp_path):
    assert rank_forks.run(tmp_path, 2, f"{CALLS}:uneven", [[3, 5]]) == [[3], [3]]


@pytest.mark.dist
@pytest.mark.req("NT-STRH-T5")
def test_the_last_step_is_that_of_a_simulation(rank_forks, tmp_path):
    numbers = random.Random(0)
    counts = [[numbers.randint(1, 12), numbers.randint(1, 12)] for _ in range(20)]
    found = rank_forks.run(tmp_path, 2, f"{CALLS}:uneven", counts)

    def simulated(ends):
        step = 0
        while True:
            step += 1
            if any(step == end for end in ends):
                return step

    assert found == [[simulated(ends) for ends in counts]] * 2


def flags(task, mode=Mode.TRAIN):
    data = list(task.create_input_fn(mode)())
    return [bool(each[EOF_KEY] if EOF_KEY in each else each["2"]) for each in data]


def test_the_flag_is_true_on_the_last_element_only():
    assert flags(EofAwareTask(adding(7, 8, 9))) == [False, False, True]
    assert flags(EofAwareTask(made())) == [False, True]
    assert flags(EofAwareTask(adding())) == []


def test_elements_without_names_get_two():
    (element,) = EofAwareTask(adding(7)).create_input_fn(Mode.TRAIN)()
    assert element == {"1": 7, "2": torch.tensor(True)}


def test_a_batch_has_the_flag_as_a_dense_column():
    batch = Batch(dense={"x": torch.ones(2)})
    first, last = EofAwareTask(adding(batch, batch)).create_input_fn(Mode.TRAIN)()
    assert first.dense[EOF_KEY].tolist() == [False, False]
    assert last.dense[EOF_KEY].tolist() == [True, True]


def test_a_batch_without_samples_has_the_flag_in_the_shape_of_its_column():
    batch = Batch(dense={"x": torch.ones(0)})
    first, last = EofAwareTask(adding(batch, batch)).create_input_fn(Mode.TRAIN)()
    assert (first.dense[EOF_KEY].shape, last.dense[EOF_KEY].shape) == ((0,), (0, 1))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_last_batch_without_samples_ends_the_run(prefetch):
    empty = {"a": Ragged.from_lists([]), "label": torch.ones(0), "price": torch.ones(0)}
    task = EofAwareTask(made(batches=[columns(), empty]))
    with Trainer(task, TrainSettings(prefetch=prefetch)) as trainer:
        assert trainer.fit().num_steps == 2
    assert task.has_ended


def test_data_that_begin_again_have_no_last_element():
    task = EofAwareTask(adding(1, 2))
    task.p.train.repeat = True
    assert flags(task) == [False, False]
    assert flags(task, Mode.EVAL) == [False, True]


@pytest.mark.parametrize("use_dataservice", [True, False])
def test_the_wrapper_works_with_and_without_a_data_service(use_dataservice):
    assert flags(EofAwareTask(adding(1), use_dataservice)) == [True]


def test_attributes_are_those_of_the_task():
    task = made(scale=2.0)
    wrapped = EofAwareTask(task)
    assert wrapped.scale == 2.0
    assert isinstance(wrapped, type(task))
    assert wrapped.lookup.__func__ is type(task).lookup
    wrapped.scale = 3.0
    assert task.scale == 3.0


def test_functions_that_are_set_on_the_object_are_refused():
    task = made(create_model_fn=lambda: None)
    with pytest.raises(ValueError, match="expected create_model_fn in the class of the task"):
        EofAwareTask(task)


def test_an_export_sees_the_task_alone():
    task = EofAwareTask(adding(7))
    with Run(is_exporting=True).as_current():
        assert list(task.create_input_fn(Mode.TRAIN)()) == [7]
        spec = task.create_model_fn()(torch.tensor(7), Mode.TRAIN, None)
    assert not spec.training_hooks


def test_only_training_asks_the_ranks():
    task = EofAwareTask(adding(7))
    spec = task.create_model_fn()({"1": 7, "2": torch.tensor(True)}, Mode.EVAL, None)
    assert not spec.training_hooks
    assert not task.has_ended


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_trainer_trains_the_task_as_without_the_wrapper(prefetch):
    losses = []
    for wrap in (lambda task: task, EofAwareTask):
        task = wrap(made(batches=[columns(), columns(), columns()]))
        with Trainer(task, TrainSettings(prefetch=prefetch)) as trainer:
            result = trainer.fit()
            rows = trainer.features.tables["a"].lookup(torch.tensor([1, 2]))
        # With rows that were looked up ahead, a loss depends on the moment of its lookup.
        loss = None if prefetch else result.figures.loss
        losses.append((result.num_steps, loss, rows.tolist()))
        assert task.calls[-1] == ("train", ["a", "label", "price"])
    assert losses[0] == losses[1]
    assert losses[0][0] == 3


class Data:
    """Numbers that can resume."""

    def __init__(self, *numbers, start=0):
        self.numbers, self.at = numbers, start

    def __iter__(self):
        return Data(*self.numbers)

    def resume(self, position):
        return Data(*self.numbers, start=position)

    def state_dict(self):
        return self.at

    def __next__(self):
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1]

    def close(self):
        self.at = len(self.numbers)


def test_a_position_is_that_after_the_last_element_that_was_given():
    task = EofAwareTask(adding())
    task.elements = Data(5, 6, 7)
    data = task.create_input_fn(Mode.TRAIN)()
    elements = iter(data)
    assert elements.state_dict() == 0
    assert next(elements)["1"] == 5
    assert elements.state_dict() == 1
    rest = list(data.resume(elements.state_dict()))
    assert [(each["1"], bool(each["2"])) for each in rest] == [(6, False), (7, True)]
    elements.close()


def test_a_model_with_heads_is_wrapped_too():
    params = FFMParams().task()
    params.train.per_replica_batch_size = 8
    with Trainer(EofAwareTask(params.instantiate()), TrainSettings(steps=2)) as trainer:
        assert trainer.fit().num_steps == 2
