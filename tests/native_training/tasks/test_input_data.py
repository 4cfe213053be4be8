"""The data of a job: a share for each worker, from its own call of the input function."""

import pytest

from monolith.native_training.tasks import task_context
from monolith.native_training.tasks.input_data import WorkerInputs
from monolith.native_training.tasks.task_context import NativeTaskContext
from monolith.train import Mode
from tests.native_training.tasks.native_tasks import Score, columns, made


class Numbered(Score):
    """Batch n of worker i has the label 10 i + n."""

    def create_input_fn(self, mode):
        def batches():
            for number in range(3):
                worker = task_context.get().worker_index
                yield {**columns(), "label": 0 * columns()["label"] + 10 * worker + number}

        return batches


def inputs(index=0, num_workers=2, task=None):
    with task_context.with_ctx(NativeTaskContext(2, 0, num_workers, index, "", None, "worker")):
        return (task or made(Numbered)).source(Mode.TRAIN)


def labels(batches):
    return [int(batch.labels["label"][0]) for batch in batches]


def test_each_worker_is_a_share_and_any_process_can_open_it():
    source = inputs()
    assert isinstance(source, WorkerInputs)
    assert source.divide(2).names() == ["worker 0 of 2", "worker 1 of 2"]
    assert [labels(source.open(name, 0, None)) for name in source.names()] == [
        [0, 1, 2],
        [10, 11, 12],
    ]
    assert labels(inputs(1)) == [10, 11, 12]


def test_a_share_goes_on_after_a_position():
    source = inputs()
    batches = source.open("worker 1 of 2", 0, None)
    next(batches)
    position = batches.state_dict()
    batches.close()
    assert labels(inputs(0).open("worker 1 of 2", 0, position)) == [11, 12]


def test_a_share_of_another_number_of_workers_has_the_place_of_then():
    assert labels(inputs(0, 1).open("worker 3 of 4", 0, None)) == [30, 31, 32]


def test_another_share_is_refused():
    with pytest.raises(ValueError, match="expected the share of a worker, such as 'worker 0 of 2'"):
        inputs().open("[1]", 0, None)


def test_outside_of_a_job_the_data_are_one_pass():
    assert labels(made(Numbered).source(Mode.TRAIN)) == [0, 1, 2]
