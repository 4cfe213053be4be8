import pytest
import torch

from monolith.optim import AdamomOptimizer, ScheduledRate
from monolith.table.optimizers import PolynomialDecay


def test_a_scheduled_rate_follows_its_counter():
    steps = iter(range(1, 3))
    rate = ScheduledRate(PolynomialDecay(0.01, 10, 0.11), lambda: next(steps))
    assert [rate(), rate()] == pytest.approx([0.02, 0.03])


def test_the_published_steps_of_adagrad_at_step_0():
    rate = ScheduledRate(PolynomialDecay(3.0, 10, 11.0), lambda: 0)
    params = [torch.nn.Parameter(torch.tensor(w)) for w in ([1.0, 2.0], [3.0, 4.0])]
    optimizer = torch.optim.Adagrad(params, lr=rate(), initial_accumulator_value=0.1, eps=0)
    for _ in range(3):
        for parameter, gradient in zip(params, (0.1, 0.01), strict=True):
            parameter.grad = torch.full((2,), gradient)
        optimizer.step()
    expected = [[-1.6026098728, -0.6026098728], [2.7156791687, 3.7156791687]]
    torch.testing.assert_close(torch.stack(params).detach(), torch.tensor(expected))


def test_an_optimizer_takes_a_scheduled_rate():
    w, steps = torch.nn.Parameter(torch.ones(1)), iter(range(2))
    schedule = PolynomialDecay(0.5, 1, 0.25)
    optimizer = AdamomOptimizer([w], ScheduledRate(schedule, lambda: next(steps)))
    rates = []
    for _ in range(2):
        w.grad = torch.ones(1)
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.5, 0.25]
