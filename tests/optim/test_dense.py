import copy
import io
import threading

import numpy as np
import pytest
import torch

from monolith.optim import AdamomOptimizer, Optimizer, RmspropOptimizer, ShampooOptimizer
from monolith.table.optimizers import PolynomialDecay
from tests.nn.cases import make_bag, rows
from tests.optim.dense_cases import (
    CASES,
    MAKERS,
    everything,
    give_gradients,
    parameters,
    run,
    same_bits,
)

ALL = (AdamomOptimizer, RmspropOptimizer, ShampooOptimizer)
every_case = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
every_class = pytest.mark.parametrize("cls", ALL)


def weight(value=1.0, gradient=0.5):
    made = torch.nn.Parameter(torch.tensor([value]))
    made.grad = torch.tensor([gradient])
    return made


# Against an independent implementation


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.float64, 1e-9)])
def test_100_steps_equal_an_independent_implementation(case, dtype, tolerance):
    make, by_hand = CASES[case]
    params, double = parameters(dtype=dtype), by_hand()
    expected = [p.detach().double().numpy().copy() for p in params]
    optimizer = make(params)
    for t in range(100):
        give_gradients(params, t)
        optimizer.step()
        for i, p in enumerate(params):
            expected[i] = double.step(i, expected[i], p.grad.double().numpy(), t)
    for p, values in zip(params, expected, strict=True):
        np.testing.assert_allclose(p.detach().double().numpy(), values, atol=tolerance)


@every_case
def test_bfloat16_follows_float32(make):
    half, single = parameters(dtype=torch.bfloat16), parameters()
    for params in (half, single):
        run(make(params), params, 3)
    for p, q in zip(half, single, strict=True):
        torch.testing.assert_close(p.float(), q, atol=0.05, rtol=0.05)


# State


@every_case
def test_state_goes_through_a_file_in_the_middle_of_a_run(make):
    params, others = parameters(), parameters()
    optimizer, file = make(params), io.BytesIO()
    run(optimizer, params, 7)
    torch.save([optimizer.state_dict(), params], file)
    file.seek(0)
    state, values = torch.load(file, weights_only=True)
    other = make(others)
    with torch.no_grad():
        for p, value in zip(others, values, strict=True):
            p.copy_(value)
    other.load_state_dict(state)
    run(optimizer, params, 30, first=7)
    run(other, others, 30, first=7)
    assert same_bits(everything(optimizer, params), everything(other, others))


@every_case
def test_a_copy_goes_on_like_the_original(make):
    params = parameters()
    optimizer = make(params, name="Mine", use_locking=True)
    run(optimizer, params, 3)
    twin, others = copy.deepcopy((optimizer, params))
    assert (twin.name, twin.use_locking) == ("Mine", True)
    run(optimizer, params, 3, first=3)
    run(twin, others, 3, first=3)
    assert same_bits(everything(optimizer, params), everything(twin, others))


def test_a_copy_keeps_functions_of_learning_rate_and_step():
    optimizer = ShampooOptimizer([weight()], lambda: 0.5, warmup=3, global_step=lambda: 7)
    twin = copy.deepcopy(optimizer)
    twin.step()
    assert twin.param_groups[0]["lr"] == 0.5
    assert twin._global_step() == 7


@pytest.mark.req("TS-ADAM-T1")
def test_state_is_found_by_name_whatever_the_order():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = AdamomOptimizer(model.parameters(), name="Mine")
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    named = list(model.named_parameters())
    state = optimizer.named_state(named)
    names = ("0.weight", "0.bias", "1.weight", "1.bias")
    assert list(state) == [f"{name}/Mine/{slot}" for name in names for slot in ("m", "v", "c")]
    assert state["1.weight/Mine/v"] is optimizer.state[model[1].weight]["v"]
    assert set(optimizer.named_state(reversed(named))) == set(state)


def test_a_parameter_without_a_step_has_no_state():
    w, other = weight(), torch.nn.Parameter(torch.zeros(1))
    optimizer = AdamomOptimizer([w, other])
    optimizer.step()
    assert set(optimizer.named_state([("w", w), ("other", other)])) == {
        *("w/Adamom/m", "w/Adamom/v", "w/Adamom/c")
    }
    assert list(optimizer.state) == [w]


# Step


@every_class
def test_a_closure_computes_the_gradients(cls):
    w = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = cls([w], learning_rate=0.1)

    def closure():
        optimizer.zero_grad()
        loss = w.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert w.item() < 2.0


@every_class
def test_a_step_without_gradients_changes_nothing(cls):
    w = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = cls([w], learning_rate=0.1)
    assert optimizer.step() is None
    assert w.item() == 2.0
    assert not optimizer.state


@pytest.mark.req("NT-ADAM-T3", "NT-RMSP-T2", "NT-SHAM-T6")
@every_class
def test_a_sparse_gradient_is_refused_before_any_change(cls):
    w, table = weight(), torch.nn.Parameter(torch.ones(2, 2))
    table.grad = torch.eye(2).to_sparse()
    optimizer = cls([{"params": [w]}, {"params": [table]}], learning_rate=0.1)
    with pytest.raises(RuntimeError) as caught:
        optimizer.step()
    assert str(caught.value) == f"{cls.__name__} does not support sparse gradients"
    assert w.item() == 1.0


@every_class
def test_autograd_notices_a_step_between_forward_and_backward(cls):
    w = weight()
    loss = w.square().sum()
    cls([w], learning_rate=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_case
def test_gradients_stay_as_they_are(make):
    params = parameters()
    optimizer = make(params)
    run(optimizer, params, 4)
    before = [p.grad.clone() for p in params]
    optimizer.step()
    assert same_bits([p.grad for p in params], before)


def test_a_step_that_fails_does_not_count():
    w = weight()
    optimizer = ShampooOptimizer([w])
    w.grad = torch.ones(1).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert optimizer.param_groups[0]["step"] == 0


# Beside tables


@every_case
def test_tables_and_dense_parameters_step_together(make):
    def built():
        torch.manual_seed(0)
        model = torch.nn.Sequential(make_bag(), torch.nn.Linear(2, 3))
        return model, Optimizer(model, dense=make(model.parameters()))

    def trained(model, optimizer, num_steps):
        for _ in range(num_steps):
            optimizer.zero_grad()
            model(torch.tensor([[1, 2], [2, 3]])).square().sum().backward()
            optimizer.step()
        return [*(p.detach() for p in model[1].parameters()), rows(model[0])]

    (model, optimizer), (twin, other) = built(), built()
    trained(model, optimizer, 3)
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    *found, table = trained(model, optimizer, 3)
    *expected, same_table = trained(twin, other, 3)
    assert same_bits(found, expected)
    assert table == same_table


# Groups


NUMBERS = {
    AdamomOptimizer: {"ada_decay": 0.5, "mom_decay": 0.5, "epsilon": 0.5, "weight_decay": 0.5},
    RmspropOptimizer: {
        "beta1": 0.5,
        "beta2": 0.5,
        "epsilon": 0.5,
        "weight_decay": 0.5,
        "use_v2": True,
    },
    ShampooOptimizer: {
        "beta_1": 0.5,
        "beta_2": 0.5,
        "warmup": 1,
        "tau_1": 2,
        "tau_2": 2,
        "eigen_head": 1,
        "eigen_tail": 1,
        "damping_epsilon": 5.0,
    },
}


@pytest.mark.parametrize(
    ("cls", "name"),
    [(cls, name) for cls, numbers in NUMBERS.items() for name in ("learning_rate", *numbers)],
)
def test_a_group_has_numbers_of_its_own(cls, name):
    warm = {"warmup": 0, "tau_1": 1, "tau_2": 1, "eigen_head": 2, "eigen_tail": 2}
    warm = warm if cls is ShampooOptimizer else {}
    own = {"learning_rate": 0.5, **NUMBERS[cls]}[name]
    own = 3 if name == "warmup" else own
    grouped, plain = (parameters(((5, 4), (3, 3))) for _ in range(2))
    groups = [{"params": grouped[:1]}, {"params": grouped[1:], name: own}]
    run(cls(groups, learning_rate=0.1, **warm), grouped, 5)
    options = {"learning_rate": 0.1, **warm}
    run(cls(plain[:1], **options), plain, 5)
    alone = parameters(((5, 4), (3, 3)))
    run(cls(alone, **{**options, name: own}), alone, 5)
    assert torch.equal(grouped[0], plain[0])
    assert torch.equal(grouped[1], alone[1])
    assert not torch.equal(grouped[0], alone[0])


def test_a_group_may_be_added_later():
    w = weight()
    optimizer = AdamomOptimizer([weight()], learning_rate=0.1)
    optimizer.add_param_group({"params": w, "lr": 0.0})
    optimizer.step()
    assert w.item() == 1.0


def test_a_group_takes_one_learning_rate():
    with pytest.raises(ValueError, match=r"^\[AdamomOptimizer\] expected learning_rate or lr in"):
        AdamomOptimizer([{"params": weight(), "lr": 0.1, "learning_rate": 0.1}])


# Learning rates


@pytest.mark.req("NT-ADAM-T2")
@every_class
def test_a_function_is_called_once_per_step_and_its_value_used(cls):
    calls = []

    def rate():
        calls.append(0.1 * (len(calls) + 1))
        return calls[-1]

    params, others = parameters(((2, 2), (3,))), parameters(((2, 2), (3,)))
    groups = [{"params": params[:1]}, {"params": params[1:]}]
    optimizer, other = cls(groups, rate), cls(others, 0.1)
    assert calls == []
    for step in range(3):
        other.param_groups[0]["lr"] = 0.1 * (step + 1)
        run(optimizer, params, 1, first=step)
        run(other, others, 1, first=step)
        assert optimizer.param_groups[0]["lr"] == calls[-1]
    assert len(calls) == 3
    assert same_bits(everything(optimizer, params), everything(other, others))


@every_class
@pytest.mark.parametrize("rate", [torch.tensor(0.25), torch.tensor([0.25])])
def test_a_tensor_is_a_learning_rate(cls, rate):
    params, others = parameters(), parameters()
    run(cls(params, rate), params, 3)
    run(cls(others, 0.25), others, 3)
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q)


@every_class
def test_a_scheduler_of_torch_drives_the_learning_rate(cls):
    w = weight()
    optimizer = cls([w], learning_rate=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
    optimizer.step()
    scheduler.step()
    before = w.item()
    optimizer.state.clear()
    optimizer.step()
    assert w.item() == before


def test_a_scheduler_beside_a_function_is_refused():
    optimizer = AdamomOptimizer([weight()], lambda: 0.1)
    optimizer.param_groups[0]["initial_lr"] = 0.1
    text = r"^\[AdamomOptimizer.step\] expected one source of the learning rate, got a scheduler"
    with pytest.raises(ValueError, match=text):
        optimizer.step()


@pytest.mark.parametrize("rate", [-0.5, float("nan"), float("inf")])
def test_a_function_that_gives_no_learning_rate_is_refused(rate):
    w = weight()
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        AdamomOptimizer([w], lambda: rate).step()
    text = f"[AdamomOptimizer.step] expected a finite learning rate >= 0, got {rate}"
    assert str(caught.value) == text
    assert w.item() == 1.0


@pytest.mark.parametrize("rate", ["0.1", None])
def test_a_function_that_gives_no_number_is_refused(rate):
    text = rf"^\[AdamomOptimizer.step\] expected the learning rate as a number, got {rate!r}$"
    with pytest.raises(TypeError, match=text):
        AdamomOptimizer([weight()], lambda: rate).step()


def test_a_schedule_without_its_step_is_refused():
    text = r"got a PolynomialDecay, which needs the step; pass a ScheduledRate of it$"
    with pytest.raises(TypeError, match=text):
        AdamomOptimizer([weight()], PolynomialDecay(0.01, 10, 0.11))


# Locking


@every_class
def test_locked_steps_of_many_threads_are_steps_one_after_another(cls):
    shapes = ((300, 300),)
    params, others = parameters(shapes), parameters(shapes)
    for one in (params, others):
        give_gradients(one, 0)
    optimizer, other = cls(params, 0.01, use_locking=True), cls(others, 0.01)
    threads = [
        threading.Thread(target=lambda: [optimizer.step() for _ in range(10)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(40):
        other.step()
    assert same_bits(everything(optimizer, params), everything(other, others))


@every_class
@pytest.mark.parametrize("use_locking", [False, True])
def test_the_lock_is_held_during_a_step_only_where_it_is_asked_for(cls, use_locking, monkeypatch):
    optimizer, held = cls([weight()], use_locking=use_locking), []
    monkeypatch.setattr(optimizer, "_step_groups", lambda: held.append(optimizer._lock.locked()))
    optimizer.step()
    assert held == [use_locking]
    assert not optimizer._lock.locked()
