import math

import pytest
import torch

from monolith.native_training.util.gradient_rules import clip_and_decay
from monolith.nn import EmbeddingBag
from monolith.optim import Optimizer
from monolith.table import Zeros
from monolith.table.optimizers import SGD


class Model(torch.nn.Module):
    """A table and a parameter of one element."""

    def __init__(self):
        super().__init__()
        self.bag = EmbeddingBag(4, optimizer=SGD(1.0), initializer=Zeros())
        self.dense = torch.nn.Parameter(torch.ones(1))


def stepped(dense=1.0, sparse=(1.0, 1.0, 1.0, 0.0), step=0, **options):
    """The parameter, the row and the norm after a step with these gradients."""
    model = Model()
    optimizer = Optimizer(model, dense=torch.optim.SGD([model.dense], lr=1.0))
    row = model.bag(torch.tensor([[7]]))
    loss = (row * torch.tensor(sparse)).sum() + dense * model.dense.sum()
    loss.backward()
    norm = clip_and_decay(optimizer, step, **{"clip_norm": 1.0, **options})
    optimizer.step()
    return model.dense.item(), model.bag.table.lookup(torch.tensor([7]))[0].tolist(), norm


def test_one_norm_clips_dense_and_sparse_gradients():
    assert stepped() == (0.5, [-0.5, -0.5, -0.5, 0.0], 2.0)


@pytest.mark.parametrize("clip_norm", [None, 2.0, 1000.0])
def test_a_smaller_norm_is_not_clipped(clip_norm):
    assert stepped(clip_norm=clip_norm) == (0.0, [-1.0, -1.0, -1.0, 0.0], 2.0)


def test_the_bound_of_tables_grows_from_zero():
    for step, share in ((0, 0.0), (1, 0.125), (2, 0.25), (4, 0.5), (9, 0.5)):
        dense, row, _ = stepped(step=step, sparse_norm_warmup_steps=4)
        assert (dense, row[0]) == (0.5, pytest.approx(-share))


def test_weight_decay_comes_after_clipping_and_is_dense():
    dense, row, norm = stepped(weight_decay=0.25)
    assert (dense, row[0], norm) == (1.0 - (0.5 + 0.25 * 1.0), -0.5, 2.0)


def test_parameters_without_a_gradient_do_not_decay():
    model = Model()
    optimizer = Optimizer(model, dense=torch.optim.SGD([model.dense], lr=1.0))
    assert clip_and_decay(optimizer, 0, clip_norm=1.0, weight_decay=0.5) == 0.0
    assert model.dense.grad is None


def test_a_norm_that_is_not_finite_makes_gradients_nan_and_the_step_refuses_them():
    with pytest.raises(ValueError, match="expected finite gradients, got norm nan"):
        stepped(dense=math.inf)


def test_a_negative_bound_is_refused():
    with pytest.raises(ValueError, match=r"\[clip_norm\] expected a bound >= 0, got -1"):
        stepped(clip_norm=-1.0)
