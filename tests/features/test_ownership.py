"""Gradients that a backward was given: taken where nobody else holds them, else copied."""

import numpy as np
import pytest
import torch

from monolith.features import BagFeature
from monolith.features import autograd as module
from monolith.features.gradients import holders_alone
from monolith.table import Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD
from tests.features.feature_cases import lists, make_bags

IDS = {"x": [[1], [2]]}


def make():
    """One table of two columns and rate 1, so that a step is the gradient."""
    return make_bags(
        configs=[TableConfig("a", Segment(2, SGD(1.0), Zeros()))], features=[BagFeature("x", "a")]
    )


def keep(output):
    kept = []
    output.register_hook(kept.append)
    (output * 3).sum().backward()
    return kept[0]


def replace(output):
    kept = torch.full((2, 2), 3.0)
    output.register_hook(lambda gradient: kept)
    (output * 1).sum().backward()
    return kept


def replace_by_view(output):
    kept = torch.full((2, 2), 3.0)
    output.register_hook(lambda gradient: kept[:])
    (output * 1).sum().backward()
    return kept


def replace_by_alias(output):
    kept = torch.full((2, 2), 3.0)
    output.register_hook(lambda gradient: kept.detach())
    (output * 1).sum().backward()
    return kept


def replace_by_array(output):
    kept = np.full((2, 2), 3.0, dtype=np.float32)
    output.register_hook(lambda gradient: torch.from_numpy(kept))
    (output * 1).sum().backward()
    return torch.from_numpy(kept)


def give(output):
    kept = torch.full((2, 2), 3.0)
    output.backward(kept)
    return kept


def retain(output):
    output.retain_grad()
    (output * 3).sum().backward()
    return output.grad


def share_with_a_parameter(output):
    other = torch.nn.Parameter(torch.zeros(2, 2))
    ((output + other) * 3).sum().backward()
    return other.grad


def hold_by_a_module(output):
    class Same(torch.nn.Module):
        def forward(self, given):
            return given * 1

    kept, same = [], Same()
    same.register_full_backward_hook(lambda module, given, got: kept.append(given[0]))
    (same(output) * 3).sum().backward()
    return kept[0]


def keep_storage(output):
    kept = []
    output.register_hook(lambda gradient: kept.append(gradient.untyped_storage()))
    (output * 3).sum().backward()
    return torch.empty(0).set_(kept[0], 0, (2, 2))


def keep_beside_the_node(output):
    kept = []
    output.grad_fn.register_hook(lambda inputs, outputs: kept.append(outputs[0]))
    (output * 3).sum().backward()
    return kept[0]


CASES = [
    keep,
    replace,
    replace_by_view,
    replace_by_alias,
    replace_by_array,
    give,
    retain,
    share_with_a_parameter,
    hold_by_a_module,
    keep_storage,
    keep_beside_the_node,
]


@pytest.mark.parametrize("backward", CASES, ids=lambda case: case.__name__)
def test_gradients_that_others_hold_may_be_written_before_the_step(backward):
    bags = make()
    held = backward(bags.lookup(lists(**IDS)))
    assert held.tolist() == [[3.0, 3.0]] * 2
    held.fill_(100.0)
    bags.queue.scale(1.0)  # so that the step sums what is queued anew
    bags.queue.apply()
    assert bags.tables["a"].lookup(torch.tensor([1, 2])).tolist() == [[-3.0, -3.0]] * 2


def memory_of_queued(bags):
    (item,) = bags.queue._items
    return item.gradients.data_ptr()


def test_gradients_that_nobody_else_holds_are_not_copied(monkeypatch):
    given = []

    def watched(gradients, is_alone):
        given.append(gradients.data_ptr())
        return own(gradients, is_alone)

    own = module.own
    monkeypatch.setattr(module, "own", watched)
    bags = make()
    (bags.lookup(lists(**IDS)) * 3).sum().backward()
    assert memory_of_queued(bags) == given[0]


def test_gradients_that_do_not_lie_in_order_are_copied():
    bags = make()
    bags.lookup(lists(**IDS)).sum().backward()  # one number for all of them
    bags.queue.apply()
    assert bags.tables["a"].lookup(torch.tensor([1, 2])).tolist() == [[-1.0, -1.0]] * 2


def test_holders_are_counted_also_where_nothing_is_recorded():
    with torch.inference_mode():
        counted = holders_alone()
    assert counted == holders_alone()
