"""`Optimizer.zero_grad` beside that of its dense optimizer."""

import torch

from monolith.optim import Optimizer
from tests.optim.cases import IDS, adam


class Noted(torch.optim.SGD):
    """Says when its own `zero_grad` is called."""

    def zero_grad(self, set_to_none=True):
        self.called = True
        super().zero_grad(set_to_none)


def test_a_dense_optimizer_may_have_a_zero_grad_of_its_own(model):
    dense = Noted(model.parameters(), lr=0.1)
    optimizer = Optimizer(model, dense=dense)
    model(IDS).sum().backward()
    optimizer.zero_grad()
    assert dense.called
    assert model[1].weight.grad is None


def test_zero_grad_may_keep_the_memory_of_gradients(model):
    optimizer = Optimizer(model, dense=adam(model))
    model(IDS).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert model[1].bias.grad.tolist() == [0.0]
    assert model[0].queue.num_lookups == 0


def test_a_profile_names_zero_grad(model):
    optimizer = Optimizer(model, dense=adam(model))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.zero_grad()
    assert "Optimizer.zero_grad#Adam.zero_grad" in {event.key for event in profile.key_averages()}
