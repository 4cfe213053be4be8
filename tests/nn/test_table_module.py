"""Steps and modes of the modules with tables, and what of torch works beside them."""

import gc
import weakref

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from monolith.nn import Embedding
from monolith.table import MinCount, Zeros
from monolith.table.optimizers import Adam
from tests.nn.cases import IDS, NEW, OFFSETS, make_bag, rows, trained
from tests.suites.table_base import NOW

# Steps


def test_backward_changes_no_row_and_a_step_does():
    bag = make_bag(initializer=Zeros())
    bag(IDS, OFFSETS).sum().backward()
    assert rows(bag) == {}
    bag.step()
    assert rows(bag) == {7: [-2.0, -2.0], -3: [-1.0, -1.0], 1 << 62: [-1.0, -1.0]}


def test_two_lookups_make_one_step_per_key():
    bag = make_bag(initializer=Zeros(), optimizer=Adam(0.5))
    (bag(NEW) + 3 * bag(NEW)).sum().backward()
    assert bag.step().num_applied == 1
    once = make_bag(initializer=Zeros(), optimizer=Adam(0.5))
    (4 * once(NEW)).sum().backward()
    once.step()
    assert rows(bag) == rows(once)


def test_two_modules_of_one_table_make_one_step():
    first = make_bag(initializer=Zeros())
    second = Embedding(2, table=first.table)
    (first(NEW).sum() + second(NEW).sum()).backward()
    assert first.step().num_applied == 1
    assert second.step().num_applied == 0
    assert rows(first) == {100: [-2.0, -2.0]}


def test_gradients_of_several_backwards_accumulate():
    bag = make_bag(initializer=Zeros())
    for _ in range(3):
        bag(NEW).sum().backward()
    bag.step()
    assert rows(bag) == {100: [-3.0, -3.0]}


@pytest.mark.parametrize(
    "forget",
    [
        lambda bag: bag.zero_grad(),
        lambda bag: torch.nn.Sequential(bag).zero_grad(),
        lambda bag: torch.nn.Sequential(bag).zero_grad(set_to_none=False),
        lambda bag: torch.optim.SGD(bag.parameters(), lr=1.0).zero_grad(),
        lambda bag: setattr(bag.anchor, "grad", None),
    ],
    ids=["module", "model", "zeros", "optimizer", "by hand"],
)
@pytest.mark.parametrize("is_last", [True, False])
def test_gradients_set_to_zero_are_dropped(forget, is_last):
    bag = make_bag(initializer=Zeros())
    bag(NEW).sum().backward()
    forget(bag)
    if is_last:
        assert bag.step().num_applied == 0
    else:
        bag(NEW + 1).sum().backward()
        bag.step()
        assert rows(bag) == {101: [-1.0, -1.0]}


def test_a_step_without_backward_changes_nothing():
    bag = make_bag()
    assert bag.step() == (0, 0, 0, 0)
    assert bag.table.num_update_calls == 0


def test_a_step_empties_the_queue():
    bag = make_bag()
    bag(NEW).sum().backward()
    bag.step()
    assert bag.anchor.grad is None
    assert bag.step().num_applied == 0


def test_backward_twice_is_refused_and_queues_once():
    bag = make_bag(initializer=Zeros())
    loss = bag(NEW).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    bag.step()
    assert rows(bag) == {100: [-1.0, -1.0]}


def test_backward_twice_through_a_retained_graph_queues_twice():
    bag = make_bag(initializer=Zeros())
    loss = bag(NEW).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    bag.step()
    assert rows(bag) == {100: [-2.0, -2.0]}


def test_a_refused_step_keeps_the_queue_and_the_table():
    bag = make_bag()
    (bag(NEW) * float("nan")).sum().backward()
    with pytest.raises(ValueError, match=r"NaN or Inf|finite"):
        bag.step()
    assert rows(bag) == {}
    bag.zero_grad()
    assert bag.step().num_applied == 0


def test_learning_rates_and_time_of_a_step_reach_the_table():
    bag = make_bag(initializer=Zeros())
    bag(NEW).sum().backward()
    bag.step(learning_rates=[0.25], now=NOW - 9)
    assert rows(bag) == {100: [-0.25, -0.25]}
    assert bag.table.lookup_entry(NEW[0]).rows.times.tolist() == [NOW - 9]


# Modes


def test_a_new_key_reads_its_initial_row_in_training_and_zeros_in_eval():
    bag = make_bag()
    assert bag(NEW).tolist() == bag.table.lookup(NEW[0]).tolist()
    assert bag.eval()(NEW).tolist() == [[0.0, 0.0]]
    assert len(bag.table) == 0


def test_missing_zeros_reads_zeros_in_training_too():
    assert make_bag(missing="zeros")(NEW).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_nothing_is_queued_without_gradients(context):
    bag = make_bag()
    with context():
        assert not bag(NEW).requires_grad
    assert bag.queue.num_lookups == 0


def test_nothing_is_queued_in_eval():
    bag = make_bag().eval()
    assert not bag(NEW).requires_grad


def test_weights_get_gradients_in_eval_and_nothing_is_queued():
    bag = trained(make_bag()).eval()
    weights = torch.ones(1, requires_grad=True)
    bag(IDS[:1], OFFSETS[:1], weights).sum().backward()
    assert weights.grad.tolist() == bag.table.lookup(IDS[:1]).sum(1).tolist()
    assert bag.queue.num_lookups == 0


def test_the_mode_at_the_forward_decides():
    bag = make_bag()
    in_training = bag(NEW)
    in_eval = bag.eval()(NEW + 1)
    (in_training.sum() + in_eval.sum()).backward()
    bag.step()
    assert list(rows(bag)) == [100]


def test_a_frozen_module_is_not_trained():
    bag = make_bag().requires_grad_(False)
    assert not bag(NEW).requires_grad


def test_a_key_that_waits_for_admission_reads_zeros_and_is_counted():
    bag = make_bag(admission=MinCount(1))
    for expected in (1, 0):
        pooled = bag(NEW)
        assert pooled.tolist() == [[0.0, 0.0]]
        pooled.sum().backward()
        assert bag.step().num_refused == expected
    assert len(bag.table) == 1


def test_rows_stay_as_they_are_when_the_model_is_moved_or_cast():
    bag = trained(make_bag())
    before = rows(bag)
    model = torch.nn.Sequential(bag).half().to("meta")
    assert model(NEW).dtype == torch.float32
    assert model(NEW).device.type == bag.anchor.device.type == "cpu"
    assert rows(bag) == before


# Beside other parts of torch


def collate(samples):
    return torch.tensor(samples), torch.arange(0, len(samples), 2)


@pytest.mark.dist
def test_ids_come_from_workers_of_a_data_loader():
    samples = list(range(-20, 20))
    bag = make_bag(initializer=Zeros())
    loader = DataLoader(samples, batch_size=8, num_workers=2, collate_fn=collate)
    for ids, offsets in loader:
        bag(ids, offsets).sum().backward()
        bag.step()
    assert rows(bag) == {key: [-1.0, -1.0] for key in samples}


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_queues_once(use_reentrant):
    bag = make_bag(initializer=Zeros())
    scale = torch.ones(2, requires_grad=True)  # reentrant checkpoints need a differentiable input

    def part(scale):
        return bag(NEW) * scale

    loss = checkpoint(part, scale, use_reentrant=use_reentrant).sum() + bag(NEW + 1).sum()
    loss.backward()
    bag.step()
    assert rows(bag) == {100: [-1.0, -1.0], 101: [-1.0, -1.0]}


def test_gradients_that_are_only_returned_are_not_queued():
    bag = make_bag(initializer=Zeros())
    torch.autograd.grad(bag(NEW).sum(), bag.anchor)
    bag(NEW + 1).sum().backward()
    bag.step()
    assert list(rows(bag)) == [101]


def test_another_parameter_in_place_of_the_anchor_is_refused():
    bag = make_bag()
    other = {"anchor": torch.nn.Parameter(torch.zeros(1))}
    with pytest.raises(ValueError, match=r"expected the anchor of the table, got another .*'user'"):
        torch.func.functional_call(bag, other, NEW)
    with torch.no_grad():
        assert torch.func.functional_call(bag.eval(), other, NEW).tolist() == [[0.0, 0.0]]


@pytest.fixture
def _one_rank():
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.dist
@pytest.mark.usefixtures("_one_rank")
def test_ranks_that_average_gradients_are_refused():
    model = torch.nn.Sequential(make_bag(), torch.nn.Linear(2, 1))
    with pytest.raises(RuntimeError, match=r"no table in the wrapped model, got .*'user'"):
        DistributedDataParallel(model)(NEW)
    dense = DistributedDataParallel(model[1])
    dense(model[0](NEW)).sum().backward()
    assert model[0].step().num_applied == 1


def test_a_gradient_may_be_changed_between_backward_and_step():
    bag = make_bag(initializer=Zeros())
    gradient = torch.ones(1, 2)
    bag(NEW).backward(gradient)
    gradient.zero_()
    bag.step()
    assert rows(bag) == {100: [-1.0, -1.0]}


@pytest.mark.filterwarnings("ignore:.*create_graph=True:UserWarning")
def test_a_queue_holds_no_graph():
    bag = make_bag()
    pooled = bag(NEW)
    pooled.square().sum().backward(create_graph=True, inputs=[bag.anchor])
    _, gradients = bag.queue._items[0]
    assert not gradients.gradients.requires_grad


def test_autocast_keeps_rows_and_gradients_in_float32():
    model = torch.nn.Sequential(make_bag(), torch.nn.Linear(2, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(NEW).sum().backward()
    assert model[0].step().num_applied == 1


def test_a_module_that_is_dropped_frees_its_table():
    bag = trained(make_bag())
    table = weakref.ref(bag.table)
    del bag
    gc.collect()
    assert table() is None
