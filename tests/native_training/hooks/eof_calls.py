"""What the ranks of the tests of `EofAwareTask` call."""

import time

import torch

from monolith.native_training import hvd_lib
from monolith.native_training.native_task import EstimatorSpec, NativeTask
from monolith.native_training.sync_training_hooks import EofAwareTask
from monolith.train import Mode
from monolith.train.driver import Run, current_run, drive


class Adding(NativeTask):
    """Adds each element to the global step."""

    elements = (1, 2, 3)

    def create_input_fn(self, mode):
        return lambda: self.elements

    def create_model_fn(self):
        def model_fn(features, mode, config):
            assert set(features) == {"1"} if isinstance(features, dict) else True
            number = features["1"] if isinstance(features, dict) else features

            def add():
                current_run().global_step += number

            return EstimatorSpec(mode, loss=torch.zeros(()), train_op=add)

        return model_fn


def adding(*elements):
    task = Adding.params().instantiate()
    task.elements = elements
    return task


def estimated(task):
    """Train as an estimator does: input function, model function, actions and hooks of the spec."""
    run = Run(global_step=0)
    elements = iter(task.create_input_fn(Mode.TRAIN)())
    model_fn = task.create_model_fn()

    def step():
        model_fn(next(elements), Mode.TRAIN, None).train_op()

    # The hooks are those of a call before the first step.
    first = {"1": torch.tensor(0), "2": torch.tensor(False)}
    hooks = model_fn(first, Mode.TRAIN, None).training_hooks
    return drive(step, hooks, run=run).global_step


def uneven(counts):
    """Train several times; each rank has a number of elements of its own."""
    hvd_lib.init()
    steps = []
    for each in counts:
        begin = time.monotonic()
        steps.append(estimated(EofAwareTask(adding(*[1] * each[hvd_lib.rank()]))))
        assert time.monotonic() - begin < 30
    hvd_lib.shutdown()
    return steps
