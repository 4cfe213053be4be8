"""Random states in checkpoints of a run."""

import random

import numpy as np
import pytest
import torch

from monolith.train import Trainer, TrainSettings
from monolith.train.driver import Run
from monolith.train.run_state import BufferCopies, RunState, StepClock
from tests.train.tasks import Clicks, Counting


def run_state():
    return RunState(Run(global_step=3), StepClock(lambda: 100), {})


class OneMoreDevice(RunState):
    """The state of a run on a machine with one more CUDA device."""

    def state_dict(self):
        state = super().state_dict()
        return {**state, "cuda_random": [*state["cuda_random"], torch.ones(16, dtype=torch.uint8)]}


def draw_everywhere():
    gauss = random.gauss(0, 1), float(np.random.standard_normal())  # leaves half a pair
    return torch.rand(3).tolist(), random.random(), np.random.random(3).tolist(), gauss


def test_a_seed_is_that_of_all_generators():
    drawn = []
    for _ in range(2):
        with Trainer(Counting(), TrainSettings(seed=2**32 + 5)):
            drawn.append(draw_everywhere())
    assert drawn[0] == drawn[1]


def test_all_generators_go_on_after_a_restore(tmp_path):
    with Trainer(Counting()) as trainer:
        draw_everywhere()
        trainer.save(tmp_path)
        expected = draw_everywhere()
    with Trainer(Counting(), TrainSettings(seed=1)) as trainer:
        trainer.restore(tmp_path)
        assert draw_everywhere() == expected


def test_an_older_checkpoint_leaves_other_generators_alone():
    older = run_state().state_dict()
    del older["python_random"], older["numpy_random"]
    before = random.getstate(), np.random.get_state()[2]
    run_state().load_state_dict(older)
    assert (random.getstate(), np.random.get_state()[2]) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_cuda_no_state_of_it_is_saved():
    assert run_state().state_dict()["cuda_random"] == []


def test_states_of_devices_that_are_not_here_are_left_alone(tmp_path, caplog):
    num_devices = len(run_state().state_dict()["cuda_random"])
    with Trainer(Counting()) as trainer:
        trainer.state = OneMoreDevice(trainer.run, trainer.clock, trainer.rates.values)
        trainer.save(tmp_path)
        expected = torch.rand(3).tolist()
    with Trainer(Counting()) as trainer:
        trainer.restore(tmp_path)
        assert torch.rand(3).tolist() == expected
    assert f"random states of {num_devices + 1} CUDA devices, {num_devices} are" in caplog.text


def test_an_older_checkpoint_has_no_state_of_cuda(caplog):
    older, state = run_state().state_dict(), run_state()
    del older["cuda_random"]
    state.load_state_dict({**older, "step": 7})
    assert (state.step, caplog.text) == (7, "")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_random_numbers_of_every_device_go_on(tmp_path):
    def draw():
        devices = range(torch.cuda.device_count())
        return [torch.rand(3, device=f"cuda:{device}").tolist() for device in devices]

    with Trainer(Counting()) as trainer:
        draw()
        trainer.save(tmp_path)
        expected = draw()
    with Trainer(Counting()) as trainer:
        draw()
        trainer.restore(tmp_path)
        assert draw() == expected


def test_buffers_go_back_to_their_last_copies():
    module = torch.nn.BatchNorm1d(2)
    module.register_buffer("replaced", torch.zeros(2))
    copies = BufferCopies(module)
    for number in range(3):
        module.replaced = torch.full((2,), float(number))
        copies.update()
        before = {name: buffer.tolist() for name, buffer in module.named_buffers()}
        module(torch.rand(4, 2))
        module.replaced = torch.ones(2)
        copies.restore()
        assert {name: buffer.tolist() for name, buffer in module.named_buffers()} == before


def test_a_model_of_lazy_modules_is_trained():
    class Lazy(Clicks):
        def build(self):
            return torch.nn.Sequential(torch.nn.LazyBatchNorm1d(), torch.nn.LazyLinear(1))

    with Trainer(Lazy()) as trainer:
        assert trainer.fit().num_steps == 6
