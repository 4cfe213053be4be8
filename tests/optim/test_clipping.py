import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from monolith.optim import Optimizer
from tests.nn.cases import make_bag, rows
from tests.optim.cases import IDS, adam
from tests.suites.table_base import assert_same_rows


def expected_norm(grads):
    """Norm of all gradients together, as torch computes it of a dense model."""
    return torch.cat([g.flatten() for g in grads]).norm()


def twin_of(model, num_ids=4):
    """The same model with a torch bag."""
    bag = torch.nn.EmbeddingBag(num_ids, 2, mode="sum")
    with torch.no_grad():
        bag.weight.copy_(model[0].table.lookup(torch.arange(num_ids)))
    twin = torch.nn.Sequential(bag, torch.nn.Linear(2, 1))
    twin[1].load_state_dict(model[1].state_dict())
    return twin


@pytest.mark.parametrize("num_lookups", [1, 2])
@pytest.mark.parametrize("num_backwards", [1, 3])
def test_clipping_of_torch_counts_and_scales_the_queue(num_lookups, num_backwards):
    torch.manual_seed(0)
    model = torch.nn.Sequential(make_bag(), torch.nn.Linear(2, 1))
    twin = twin_of(model)
    optimizer = Optimizer(model, dense=torch.optim.SGD(model.parameters(), lr=1.0))
    other = torch.optim.SGD(twin.parameters(), lr=1.0)
    norms = []
    for one in (model, twin):
        for k in range(num_backwards):
            (sum(one(IDS) for _ in range(num_lookups)) * (k + 1)).square().sum().backward()
        norms.append(clip_grad_norm_(one.parameters(), 0.5))
    assert norms[0] > 0.5
    torch.testing.assert_close(*norms)
    optimizer.step()
    other.step()
    torch.testing.assert_close(model[0].table.lookup(torch.arange(4)), twin[0].weight.detach())
    torch.testing.assert_close(model[1].weight, twin[1].weight)


def test_clipping_that_does_not_clip_leaves_the_bits():
    bag, twin = make_bag(), make_bag()
    for one in (bag, twin):
        one(IDS).square().sum().backward()
    clip_grad_norm_(bag.parameters(), 1e6)
    bag.step()
    twin.step()
    assert_same_rows(bag.table, twin.table)


def test_a_backward_after_clipping_adds_to_the_clipped_gradient(bag):
    bag(torch.tensor([[1]])).sum().backward()
    bag.anchor.grad.mul_(0.5)
    bag(torch.tensor([[1]])).sum().backward()
    bag.step()
    assert rows(bag) == {1: [-1.5, -1.5]}


# Gradient scaler


def scaled_step(model, optimizer, scaler, factor=1.0, *, unscale=False, clip=None):
    optimizer.zero_grad()
    scaler.scale((model(IDS) * factor).sum()).backward()
    if unscale:
        scaler.unscale_(optimizer)
    if clip is not None:
        clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("unscale", [True, False])
def test_a_gradient_scaler_leaves_no_trace(model, unscale):
    optimizer = Optimizer(model, dense=torch.optim.SGD(model.parameters(), lr=1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    weight = model[1].weight.detach().clone()
    scaled_step(model, optimizer, scaler, unscale=unscale)
    assert rows(model[0])[2] == (-2 * weight[0]).tolist()
    assert torch.equal(model[1].bias.grad, torch.tensor([2.0]))


def test_clipping_after_unscaling_sees_the_true_norm(model):
    optimizer = Optimizer(model, dense=torch.optim.SGD(model.parameters(), lr=1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    twin = twin_of(model)
    twin(IDS).sum().backward()
    clip_grad_norm_(twin.parameters(), 0.1)
    torch.optim.SGD(twin.parameters(), lr=1.0).step()
    scaled_step(model, optimizer, scaler, unscale=True, clip=0.1)
    torch.testing.assert_close(model[0].table.lookup(torch.arange(4)), twin[0].weight.detach())


@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_a_skipped_step_empties_the_queue_and_lowers_the_scale(model, unscale, factor):
    optimizer = Optimizer(model, dense=adam(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = model[1].weight.detach().clone()
    scaled_step(model, optimizer, scaler, factor, unscale=unscale)
    assert scaler.get_scale() == 512.0
    assert model[0].queue.num_lookups == 0
    assert len(model[0].table) == 0
    assert torch.equal(model[1].weight, before)
    scaled_step(model, optimizer, scaler, unscale=unscale)
    assert len(model[0].table) == 3


# State
