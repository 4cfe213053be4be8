import copy
import pickle

import pytest
import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from monolith.errors import FailedPreconditionError
from monolith.nn import Embedding, EmbeddingBag
from monolith.optim import Optimizer
from monolith.table import Segment, Table, TableConfig, Zeros
from monolith.table.optimizers import SGD, Adagrad, PolynomialDecay
from monolith.table.reference import ReferenceTable
from tests.nn.cases import Model, make_bag, rows, train
from tests.optim.cases import IDS, adam
from tests.suites.table_base import assert_same_rows


def test_a_step_trains_dense_parameters_and_rows(model):
    optimizer = Optimizer(model, dense=adam(model))
    before = model[1].bias.detach().clone()
    model(IDS).sum().backward()
    optimizer.step()
    assert len(model[0].table) == 3
    assert not torch.equal(model[1].bias, before)


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_of_a_step_are_called(bag, register):
    optimizer, called = Optimizer(bag), []
    handle = getattr(optimizer, register)(lambda *arguments: called.append(arguments[0]))
    optimizer.step()
    handle.remove()
    optimizer.step()
    assert called == [optimizer]


@pytest.mark.parametrize(
    "register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook]
)
def test_hooks_of_all_optimizers_are_called(bag, register):
    optimizer, called = Optimizer(bag), []
    handle = register(lambda *arguments: called.append(arguments[0]))
    optimizer.step()
    handle.remove()
    assert called == [optimizer]


def test_a_profile_names_the_step(bag):
    optimizer = Optimizer(bag)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    assert "Optimizer.step#Optimizer.step" in {event.key for event in profile.key_averages()}


def test_dense_parameters_step_as_without_tables(model):
    twin = torch.nn.Linear(2, 1)
    twin.load_state_dict(model[1].state_dict())
    alone, optimizer = adam(twin), Optimizer(model, dense=adam(model))
    for _ in range(3):
        optimizer.zero_grad()
        alone.zero_grad()
        pooled = model[0](IDS)
        model[1](pooled).square().sum().backward()
        twin(pooled.detach()).square().sum().backward()
        optimizer.step()
        alone.step()
    assert torch.equal(twin.weight, model[1].weight)


def test_the_anchor_is_not_in_the_dense_optimizer(model):
    optimizer = Optimizer(model, dense=adam(model))
    anchor = model[0].anchor
    of_dense = [p for group in optimizer.dense.param_groups for p in group["params"]]
    assert all(parameter is not anchor for parameter in of_dense)
    before = anchor.detach().clone()
    model(IDS).sum().backward()
    optimizer.step()
    assert torch.equal(anchor, before)


def test_named_parameters_of_the_dense_optimizer_keep_their_names(model):
    dense = torch.optim.SGD(model.named_parameters(), lr=0.1)
    optimizer = Optimizer(model, dense=dense)
    names = [group["param_names"] for group in optimizer.param_groups]
    assert names == [["1.weight", "1.bias"], ["user.anchor"]]


def test_tables_alone_need_no_dense_optimizer(bag):
    optimizer = Optimizer(bag)
    bag(IDS).sum().backward()
    optimizer.step()
    assert rows(bag) == {1: [-1.0, -1.0], 2: [-2.0, -2.0], 3: [-1.0, -1.0]}


def test_a_table_used_twice_is_stepped_once(bag):
    other = Embedding(2, table=bag.table)
    optimizer = Optimizer([bag, other])
    (bag(IDS).sum() + other(IDS).sum()).backward()
    optimizer.step()
    assert len(optimizer.queues) == 1
    assert bag.table.num_update_calls == 1
    assert rows(bag)[2] == [-4.0, -4.0]


def test_zero_grad_drops_queues_and_gradients(model):
    optimizer = Optimizer(model, dense=adam(model))
    model(IDS).sum().backward()
    optimizer.zero_grad()
    assert model[1].weight.grad is None
    optimizer.step()
    assert len(model[0].table) == 0


def test_gradients_accumulate_over_backwards(bag):
    optimizer = Optimizer(bag)
    for _ in range(3):
        bag(IDS).sum().backward()
    optimizer.step()
    assert rows(bag)[1] == [-3.0, -3.0]
    assert bag.table.num_update_calls == 1


def test_a_step_without_backward_changes_nothing(model):
    optimizer = Optimizer(model, dense=adam(model))
    optimizer.step()
    assert model[0].table.num_update_calls == 0


def test_a_closure_is_called_once_with_gradients(model):
    optimizer = Optimizer(model, dense=adam(model))
    losses = []

    def closure():
        optimizer.zero_grad()
        losses.append(model(IDS).square().sum())
        losses[-1].backward()
        return losses[-1]

    assert optimizer.step(closure) is losses[0]
    assert (len(losses), len(model[0].table)) == (1, 3)


def test_a_gradient_that_a_table_refuses_steps_nothing(model):
    optimizer = Optimizer(model, dense=adam(model))
    before = model[1].weight.detach().clone()
    (model(IDS) * float("inf")).sum().backward()
    with pytest.raises(ValueError, match=r"expected finite gradients, got norm (inf|nan) \(table"):
        optimizer.step()
    assert torch.equal(model[1].weight, before)
    assert len(model[0].table) == 0


def close_second(optimizer, tables):
    tables[1].close()


def set_rate(optimizer, tables):
    optimizer.param_groups[-1]["lr"] = float("nan")


@pytest.mark.parametrize(
    ("damage", "error", "text"),
    [
        (close_second, FailedPreconditionError, r"got a closed one \(table 'item'\)"),
        (set_rate, ValueError, "expected learning rate 0 .*nan|learning rates in .* got nan"),
    ],
)
def test_a_step_that_the_second_table_refuses_steps_nothing(model, damage, error, text):
    second = Embedding(2, name="item")
    both = torch.nn.ModuleList([model, second])
    optimizer = Optimizer(both, dense=adam(both))
    before = model[1].weight.detach().clone()
    (model(IDS).sum() + second(IDS).sum()).backward()
    damage(optimizer, [model[0].table, second.table])
    with pytest.raises(error, match=text):
        optimizer.step()
    assert torch.equal(model[1].weight, before)
    assert len(model[0].table) == 0


def test_a_table_may_skip_what_is_not_finite():
    bag = make_bag(initializer=Zeros(), non_finite="skip")
    optimizer = Optimizer(bag)
    (bag(torch.tensor([[1], [2]])) * torch.tensor([[1.0], [float("nan")]])).sum().backward()
    optimizer.step()
    assert rows(bag) == {1: [-1.0, -1.0]}


# Learning rates


def test_each_segment_has_a_group_with_its_learning_rate():
    segments = [Segment(1, SGD(0.5), name="bias"), Segment(2, Adagrad(0.25))]
    bag = EmbeddingBag(3, config=TableConfig("user", segments))
    groups = Optimizer(bag).param_groups
    assert [(g["table"], g["segment"], g["lr"]) for g in groups] == [
        ("user", "bias", 0.5),
        ("user", "1", 0.25),
    ]
    assert [len(g["params"]) for g in groups] == [1, 0]


def test_the_rate_of_a_group_is_that_of_the_step():
    segments = [Segment(1, SGD(0.5), Zeros()), Segment(1, SGD(0.5), Zeros())]
    bag = EmbeddingBag(2, config=TableConfig("user", segments), mode="sum")
    optimizer = Optimizer(bag)
    optimizer.param_groups[1]["lr"] = 4.0
    bag(torch.tensor([[1]])).sum().backward()
    optimizer.step()
    assert rows(bag) == {1: [-0.5, -4.0]}


def test_a_scheduler_drives_tables_and_dense_parameters(model):
    optimizer = Optimizer(model, dense=adam(model))
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    for expected in (1.0, 0.5, 0.25):
        assert [g["lr"] for g in optimizer.param_groups] == [0.01 * expected, expected]
        assert optimizer.dense.param_groups[0]["lr"] == 0.01 * expected
        before = model[0].table.lookup(torch.tensor([9]))
        model[0](torch.tensor([[9]])).sum().backward()
        optimizer.step()
        scheduler.step()
        assert (before - model[0].table.lookup(torch.tensor([9]))).tolist() == [[expected] * 2]
    optimizer.zero_grad()


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: OneCycleLR(optimizer, 1.0, total_steps=4, cycle_momentum=False),
        lambda optimizer: ReduceLROnPlateau(optimizer),
    ],
)
def test_other_schedulers_take_it(bag, make):
    make(Optimizer(bag))


@pytest.mark.parametrize("dense", [adam, lambda m: torch.optim.SGD(m.parameters(), momentum=0.5)])
@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: OneCycleLR(optimizer, 1.0, total_steps=4),
        lambda optimizer: CyclicLR(optimizer, 0.1, 1.0),
    ],
)
def test_schedulers_that_cycle_the_momentum_take_it(model, dense, make):
    optimizer = Optimizer(model, dense=dense(model))
    scheduler = make(optimizer)
    model(IDS).sum().backward()
    optimizer.step()
    scheduler.step()
    assert len(model[0].table) == 3


def test_a_schedule_of_a_segment_follows_its_updates():
    bag = make_bag(optimizer=SGD(PolynomialDecay(1.0, 2, 0.0)), initializer=Zeros())
    optimizer = Optimizer(bag)
    seen = []
    for _ in range(3):
        bag(torch.tensor([[1]])).sum().backward()
        optimizer.step()
        seen.append(optimizer.param_groups[0]["lr"])
    assert seen == [1.0, 0.5, 0.0]
    assert rows(bag) == {1: [-1.5, -1.5]}


def test_a_scheduler_beside_a_schedule_of_a_segment_is_refused():
    bag = make_bag(optimizer=SGD(PolynomialDecay(1.0, 2, 0.0)))
    optimizer = Optimizer(bag)
    StepLR(optimizer, step_size=1)
    bag(IDS).sum().backward()
    with pytest.raises(
        ValueError, match="expected one schedule of the learning rate of segment '0'"
    ):
        optimizer.step()
    optimizer.zero_grad()


# Clipping


def test_a_state_brings_back_moments_and_rates():
    model, twin = Model(), Model()
    optimizers = [Optimizer(one, dense=adam(one)) for one in (model, twin)]
    optimizers[0].param_groups[1]["lr"] = 0.7
    model(torch.arange(8), torch.tensor([0, 2, 5])).sum().backward()
    optimizers[0].step()
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    twin.load_state_dict(model.state_dict())
    assert [g["lr"] for g in optimizers[1].param_groups] == [0.01, 0.7, 0.1]
    for one, optimizer in zip((model, twin), optimizers, strict=True):
        optimizer.zero_grad()
        one(torch.arange(8), torch.tensor([0, 2, 5])).sum().backward()
        optimizer.step()
    assert torch.equal(model.linear.weight, twin.linear.weight)
    assert_same_rows(model.bag.table, twin.bag.table)


def test_a_state_of_other_tables_is_refused(bag):
    state = Optimizer(make_bag(name="item")).state_dict()
    text = r"tables and segments \[\('user', '0'\)\], got \[\('item', '0'\)\]"
    with pytest.raises(ValueError, match=text):
        Optimizer(bag).load_state_dict(state)


@pytest.mark.parametrize("make", [copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused_with_the_way_out(bag, make):
    with pytest.raises(TypeError, match=r"no copy and no pickle of it.* call load_state_dict"):
        make(Optimizer(bag))


def test_a_group_added_later_is_refused(bag):
    with pytest.raises(ValueError, match="expected groups in the constructor, got one afterwards"):
        Optimizer(bag).add_param_group({"params": [torch.zeros(1, requires_grad=True)]})


def test_training_is_the_same_on_the_reference_table():
    config = make_bag(4, optimizer=Adagrad(0.1)).table.config
    models = []
    for make in (Table, ReferenceTable):
        torch.manual_seed(0)
        models.append(model := Model())
        model.bag = EmbeddingBag(4, table=make(config, clock=lambda: 5), mode="mean")
        train(model, model, num_steps=5)
    assert_same_rows(models[0].bag.table, models[1].bag.table)


# Bad input


@pytest.mark.parametrize(
    ("modules", "dense", "error", "text"),
    [
        (lambda m: m.parameters(), None, TypeError, "got Parameter; pass the model, not its"),
        (lambda m: m[1], None, ValueError, "expected a module with a table, got none"),
        (lambda m: m, lambda m: m, TypeError, "dense as a torch.optim.Optimizer, got Sequential"),
        (lambda m: m, lambda m: torch.optim.LBFGS(m[1].parameters()), ValueError, "got LBFGS"),
        (lambda m: m, None, ValueError, r"none beside 1.weight, 1.bias \(2 in all\); pass dense="),
        (lambda m: m, lambda m: Optimizer(m[0]), ValueError, "steps once, got Optimizer"),
    ],
)
def test_wrong_arguments_are_refused(model, modules, dense, error, text):
    with pytest.raises(error, match=text):
        Optimizer(modules(model), dense=dense and dense(model))


def test_a_step_in_two_parts_is_a_step():
    values = []
    for is_apart in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(EmbeddingBag(4, seed=1), torch.nn.Linear(4, 1))
        optimizer = Optimizer(model, dense=torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.tensor([[42, -7, 42]])).sum().backward()
        if is_apart:
            apply = optimizer.begin_step()
            assert len(model[0].table) == 0
            apply()
        else:
            optimizer.step()
        values.append((model[0].table.lookup(torch.tensor([42, -7])), model[1].weight.detach()))
    assert all(torch.equal(one, two) for one, two in zip(*values, strict=True))


def test_gradients_that_are_queued_after_the_dense_step_get_the_rates_before():
    model = torch.nn.Sequential(
        EmbeddingBag(1, optimizer=SGD(1.0), initializer=Zeros()), torch.nn.Linear(1, 1)
    )
    dense = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = Optimizer(model, dense=dense)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rows = model[0](torch.tensor([[7]]))
    copy = rows.detach().requires_grad_()
    (copy - model[1].bias).sum().backward()
    bias = model[1].bias.item()
    apply = optimizer.begin_step(lambda: torch.autograd.backward([rows], [copy.grad]))
    assert model[1].bias.item() == bias + 1
    schedule.step()
    assert len(model[0].table) == 0
    apply()
    assert model[0].table.lookup(torch.tensor([7])).item() == -1


def test_groups_of_tables_in_another_order_with_other_anchors_load():
    bags = [EmbeddingBag(1, name=name, optimizer=SGD(1.0)) for name in "ab"]
    optimizer = Optimizer(bags)
    state = optimizer.state_dict()
    groups = [
        {**group, "lr": rate, "params": []}
        for group, rate in zip(reversed(state["param_groups"]), (0.25, 0.5), strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": groups})
    assert [(g["table"], g["lr"]) for g in optimizer.param_groups] == [("a", 0.5), ("b", 0.25)]


def test_a_step_of_a_closed_table_is_refused_before_the_dense_step():
    bag, linear = EmbeddingBag(1, name="a"), torch.nn.Linear(1, 1)
    optimizer = Optimizer([bag, linear], torch.optim.SGD(linear.parameters(), lr=1.0))
    linear(bag(torch.tensor([[1]]))).sum().backward()
    before = linear.bias.item()
    bag.table.close()
    text = r"^\[Optimizer.step\] expected an open table, got a closed one \(table 'a'\)$"
    with pytest.raises(FailedPreconditionError, match=text):
        optimizer.step()
    assert linear.bias.item() == before
