import pytest
import torch

from monolith.optim import RmspropOptimizer
from tests.optim.dense_cases import RmspropByHand

OPTIONS = {"learning_rate": 0.1, "weight_decay": 1, "beta1": 0.9, "beta2": 0.9, "epsilon": 0.1}


def steps(num_steps, **more):
    """Weight and state after some steps with the gradient 0.12."""
    w = torch.nn.Parameter(torch.tensor([0.1]))
    optimizer = RmspropOptimizer([w], **{**OPTIONS, **more})
    for _ in range(num_steps):
        w.grad = torch.tensor([0.12])
        optimizer.step()
    return [w.item(), *(optimizer.state[w][slot].item() for slot in ("m", "v"))]


@pytest.mark.req("NT-RMSP-T1")
@pytest.mark.parametrize("use_v2", [False, True])
def test_three_steps_equal_a_reference_in_float64(use_v2):
    double, expected = RmspropByHand(0.1, 0.9, 0.9, 0.1, 1.0, use_v2), 0.1
    for t in range(3):
        expected = double.step(0, expected, 0.12, t)
        found = steps(t + 1, use_v2=use_v2)
        assert found == pytest.approx([expected, *double.state[0]], abs=1e-6)


@pytest.mark.parametrize(
    ("use_v2", "expected"),
    [(False, [-0.07565274, 0.10770749, 0.00666807]), (True, [-0.07290278, 0.10415278, 0.06643656])],
)
def test_the_second_step_gives_the_published_numbers(use_v2, expected):
    assert steps(2, use_v2=use_v2) == pytest.approx(expected, abs=1e-8)


@pytest.mark.req("NT-RMSP-T2")
def test_the_variants_differ_in_both_states():
    first, second = steps(1), steps(1, use_v2=True)
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_defaults_are_those_of_the_reference_system():
    group = RmspropOptimizer([torch.nn.Parameter(torch.ones(1))]).param_groups[0]
    del group["params"]
    expected = {"lr": 5e-6, "beta1": 0.99, "beta2": 0.999, "epsilon": 1e-8}
    assert group == {**expected, "weight_decay": 0.0, "use_v2": False}


def test_groups_may_differ_in_the_variant():
    params = [torch.nn.Parameter(torch.tensor([0.1])) for _ in range(2)]
    groups = [{"params": params[:1]}, {"params": params[1:], "use_v2": True}]
    optimizer = RmspropOptimizer(groups, **OPTIONS)
    for p in params:
        p.grad = torch.tensor([0.12])
    optimizer.step()
    assert [p.item() for p in params] == [steps(1)[0], steps(1, use_v2=True)[0]]
