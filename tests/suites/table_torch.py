"""Optimizers that torch has too, on equal terms."""

import pytest
import torch

from monolith.table import Uniform
from monolith.table.optimizers import SGD, Adagrad, Adam, AMSGrad, Momentum
from tests.suites.table_base import TableCase

NUM_KEYS, DIM = 20, 5


def batches(num_steps, every_key):
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_steps):
        keys = torch.arange(NUM_KEYS)
        if not every_key:
            keys = torch.randint(0, NUM_KEYS, (10,), generator=generator)  # with equal ones
        yield keys, torch.randn(len(keys), DIM, generator=generator)


class TorchOptimizers(TableCase):
    def compare(self, ours, make_theirs, every_key=False, before_step=lambda optimizer, step: None):
        table = self.table(DIM, optimizer=ours, initializer=Uniform(-1, 1))
        weights = table.lookup_or_insert(torch.arange(NUM_KEYS)).clone().requires_grad_()
        theirs = make_theirs([weights])
        for step, (keys, grads) in enumerate(batches(50, every_key), 1):
            table.apply_gradients(keys, grads, step=step)
            weights.grad = torch.zeros_like(weights).index_add_(0, keys, grads)
            before_step(theirs, step)
            theirs.step()
        got = table.lookup(torch.arange(NUM_KEYS))
        torch.testing.assert_close(got, weights.detach(), rtol=1e-5, atol=1e-6)

    def test_sgd(self):
        self.compare(SGD(0.1), lambda p: torch.optim.SGD(p, 0.1))

    def test_adagrad(self):
        self.compare(
            Adagrad(0.1, 0.2),
            lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.2, eps=0),
        )

    @pytest.mark.parametrize("nesterov", [False, True])
    def test_momentum_with_every_key_in_every_batch(self, nesterov):
        self.compare(
            Momentum(0.1, use_nesterov=nesterov),
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=nesterov),
            every_key=True,
        )

    # torch adds epsilon after the bias correction of v, we before it; so torch gets
    # epsilon / sqrt(1 - beta2^t) at step t. The powers count per row, hence every key every time.
    @pytest.mark.parametrize(("cls", "amsgrad"), [(Adam, False), (AMSGrad, True)])
    def test_adam_with_every_key_in_every_batch(self, cls, amsgrad):
        def correct_epsilon(optimizer, step):
            optimizer.param_groups[0]["eps"] = 0.01 / (1 - 0.99**step) ** 0.5

        self.compare(
            cls(0.1),
            lambda p: torch.optim.Adam(p, 0.1, betas=(0.9, 0.99), amsgrad=amsgrad),
            every_key=True,
            before_step=correct_epsilon,
        )
