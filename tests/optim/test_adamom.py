import pytest
import torch

from monolith.optim import AdamomOptimizer
from tests.optim.dense_cases import AdamomByHand

OPTIONS = {"learning_rate": 0.1, "weight_decay": 0.01, "ada_decay": 0.99, "mom_decay": 0.9}


@pytest.mark.req("NT-ADAM-T1")
def test_further_steps_equal_a_reference_in_float64():
    w = torch.nn.Parameter(torch.tensor([0.1]))
    optimizer, double, expected = AdamomOptimizer([w], **OPTIONS), None, 0.1
    double = AdamomByHand(0.1, 0.99, 0.9, 1e-6, 0.01)
    for t in range(3):
        w.grad = torch.tensor([0.12])
        optimizer.step()
        expected = double.step(0, expected, 0.12, t)
        assert w.item() == pytest.approx(expected, abs=1e-6)
        found = [optimizer.state[w][slot].item() for slot in ("m", "v", "c")]
        assert found == pytest.approx(double.state[0], abs=1e-6)


def test_the_second_step_gives_the_published_numbers():
    w = torch.nn.Parameter(torch.tensor([0.1]))
    optimizer = AdamomOptimizer([w], **OPTIONS)
    for _ in range(2):
        w.grad = torch.tensor([0.12])
        optimizer.step()
    state = {slot: tensor.item() for slot, tensor in optimizer.state[w].items()}
    assert w.item() == pytest.approx(0.07100136, abs=1e-8)
    assert state == pytest.approx({"m": 0.022980, "v": 0.02911140, "c": 1.99}, abs=1e-8)


@pytest.mark.req("NT-ADAM-T3")
def test_state_is_m_v_and_c_and_goes_through_a_state_dict():
    w = torch.nn.Parameter(torch.tensor([[0.1, 0.2]]))
    optimizer = AdamomOptimizer([w], **OPTIONS)
    w.grad = torch.tensor([[0.12, -3.0]])
    optimizer.step()
    assert set(optimizer.state[w]) == {"m", "v", "c"}
    assert {tensor.shape for tensor in optimizer.state[w].values()} == {w.shape}
    other = AdamomOptimizer([w])
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups == optimizer.param_groups
    for slot, tensor in optimizer.state[w].items():
        assert torch.equal(other.state[w][slot], tensor)


def test_defaults_are_those_of_the_reference_system():
    group = AdamomOptimizer([torch.nn.Parameter(torch.ones(1))]).param_groups[0]
    del group["params"]
    expected = {"lr": 5e-6, "ada_decay": 0.9999, "mom_decay": 0.99, "epsilon": 1e-6}
    assert group == {**expected, "weight_decay": 0.0}


def test_the_mean_of_equal_gradients_is_that_gradient():
    w = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = AdamomOptimizer([w], 0.0, mom_decay=0.5)
    for _ in range(60):
        w.grad = torch.tensor([0.3])
        optimizer.step()
    assert torch.equal(optimizer.state[w]["m"], w.grad)
