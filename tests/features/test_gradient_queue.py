import gc

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.features.gradients import PendingGradients, pending_at, pending_of
from monolith.features.plain import TableEngine
from monolith.nn import EmbeddingBag
from monolith.table import Bags, Segment, Table, TableConfig, Zeros
from tests.nn.cases import make_bag, rows

ONE = torch.tensor([[1]])


def new_table():
    return Table(TableConfig("user", Segment(2, initializer=Zeros())))


def test_a_table_has_one_queue():
    table = new_table()
    queue = pending_of(table)
    assert pending_of(table) is queue
    assert pending_at(queue.handle) is queue
    assert pending_of(new_table()) is not queue


def test_the_handle_of_a_queue_that_is_gone_is_refused():
    handle = pending_of(new_table()).handle
    gc.collect()
    with pytest.raises(FailedPreconditionError, match=f"table handle {handle} to be alive in this"):
        pending_at(handle)


def test_a_handle_is_never_used_again():
    handle = PendingGradients(TableEngine(new_table())).handle
    assert PendingGradients(TableEngine(new_table())).handle > handle


def test_bags_that_were_not_checked_are_refused_as_checked_ones():
    bags = Bags.unchecked(torch.tensor([1]), torch.tensor([0, 2]), "sum")
    with pytest.raises(
        ValueError, match=r"^\[Bags\] expected row_splits from 0 to 1, got .* to 2$"
    ):
        TableEngine(new_table()).lookup(bags, "initial")


def test_the_gradient_of_the_anchor_is_the_norm_of_the_summed_gradients():
    bag = make_bag()
    (3 * bag(ONE)[:, :1] + bag(ONE)[:, :1]).sum().backward()  # both of the same key
    assert bag.anchor.grad.tolist() == [4.0]
    assert bag.queue.norm == 4.0
    bag(ONE + 1)[:, :1].mul(3).sum().backward()
    assert bag.anchor.grad.tolist() == [5.0]
    assert bag.queue.num_lookups == 3


def test_a_factor_on_the_gradient_of_the_anchor_scales_the_queue():
    bag = make_bag(initializer=Zeros())
    bag(ONE).sum().backward()
    bag.anchor.grad.mul_(0.25)
    assert bag.queue.norm == pytest.approx(0.25 * 2**0.5)
    bag.step()
    assert rows(bag) == {1: [-0.25, -0.25]}


def test_scaling_a_queue_scales_the_gradient_of_the_anchor():
    bag = make_bag(initializer=Zeros())
    (bag(ONE)[:, :1] * 4).sum().backward()
    bag.queue.scale(0.5)
    assert bag.anchor.grad.tolist() == [2.0]
    bag.step()
    assert rows(bag) == {1: [-2.0, 0.0]}


def test_scaling_keeps_the_winners_of_a_maximum():
    bag = make_bag(mode="max", initializer=Zeros())
    bag.table.assign(torch.tensor([1, 2]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    bag(torch.tensor([[1, 2]])).sum().backward()
    bag.queue.scale(0.5)
    bag.step()
    assert rows(bag) == {1: [0.0, 0.5], 2: [0.5, 0.0]}


def test_a_gradient_of_zero_is_a_step_too():
    bag = make_bag(initializer=Zeros())
    (bag(ONE) * 0).sum().backward()
    assert bag.step().num_inserted == 1


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_gradient_of_zero_is_dropped_by_the_model(set_to_none):
    bag = make_bag(initializer=Zeros())
    (bag(ONE) * 0).sum().backward()
    torch.nn.Sequential(bag).zero_grad(set_to_none)
    bag(ONE + 1).sum().backward()
    bag.step()
    assert list(rows(bag)) == [2]


def test_a_gradient_of_zero_adds_nothing_to_a_norm():
    bag = make_bag()
    (bag(ONE) * 0).sum().backward()
    other = torch.nn.Parameter(torch.zeros(1))
    other.grad = torch.full((1,), 1e-3)
    total = torch.nn.utils.clip_grad_norm_([bag.anchor, other], 1.0)
    assert (total, bag.queue.norm) == (other.grad[0], 0.0)


def test_a_step_of_empty_bags_is_no_update():
    bag = make_bag()
    bag(torch.empty((3, 0), dtype=torch.int64)).sum().backward()
    assert bag.step() == (0, 0, 0, 0)
    assert bag.table.num_update_calls == 0


def test_a_gradient_that_is_only_returned_is_not_kept():
    bag = make_bag()
    torch.autograd.grad(bag(ONE).sum(), bag.anchor)
    assert bag.queue._pending == {}


def test_an_optimizer_that_steps_the_anchor_alone_is_warned_of_once():
    bag = make_bag()
    optimizer = torch.optim.Adam(bag.parameters())
    bag(ONE).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.warns(RuntimeWarning, match=r"table 'user'\): its rows are not trained; use monol"):
        bag(ONE).sum().backward()
    optimizer.step()
    bag(ONE).sum().backward()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_shows_in_the_norm(value):
    bag = make_bag()
    (bag(ONE) * value).sum().backward()
    assert not bag.anchor.grad.isfinite().any()
    bag.zero_grad()
    assert bag.queue.norm == 0.0


def test_a_step_equals_one_call_with_everything_that_was_queued():
    bag, table = make_bag(), make_bag().table
    first, second = torch.tensor([[1, 2], [2, 3]]), torch.tensor([[3, 1]])
    (bag(first).square().sum() + bag(second).sum()).backward()
    grads = [2 * table.lookup_bags(Bags(first.flatten(), torch.tensor([0, 2, 4]))).values]
    occurrences = torch.cat([grads[0].repeat_interleave(2, 0), torch.ones(2, 2)])
    order = torch.cat([first.flatten(), second.flatten()])
    queued = torch.cat([bags.keys for bags, _ in bag.queue._items])
    if queued.tolist() != order.tolist():  # torch runs the later lookup's backward first
        order, occurrences = order.roll(2), occurrences.roll(2, 0)
    bag.step()
    table.apply_gradients(order, occurrences)
    assert rows(bag) == rows(EmbeddingBag(2, table=table))
