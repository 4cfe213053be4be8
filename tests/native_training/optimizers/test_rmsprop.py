import pytest
import torch

from monolith.native_training.optimizers.rmsprop import RmspropOptimizer

DEVICES = [
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
        ],
    ),
    "cpu",
]
V1 = (0.06794526153774846, 0.00484, 0.03205473846225154)
V2 = (0.068750, 0.0484, 0.031250)


def one_step(device, **options):
    """The tensors after one step, by name."""
    w = torch.nn.Parameter(torch.tensor([0.1], device=device))
    numbers = {"learning_rate": 0.1, "weight_decay": 1, "beta1": 0.9, "beta2": 0.9, "epsilon": 0.1}
    optimizer = RmspropOptimizer([w], **{**numbers, **options})
    (0.12 * w).sum().backward()
    optimizer.step()
    return {**optimizer.named_state([("w", w)]), "w": w.detach()}


def assert_is(found, expected, device):
    assert list(found) == ["w/Rmsprop/m", "w/Rmsprop/v", "w"]
    assert {tensor.device.type for tensor in found.values()} == {device}
    assert [tensor.item() for tensor in found.values()] == pytest.approx(expected, abs=1e-8)


@pytest.mark.req("TS-RMSP-T1")
@pytest.mark.parametrize("device", DEVICES)
def test_basic(device):
    assert_is(one_step(device), V1, device)


@pytest.mark.req("TS-RMSP2-T1")
@pytest.mark.parametrize("device", DEVICES)
def test_basic_of_the_second_variant(device):
    assert_is(one_step(device, use_v2=True), V2, device)


@pytest.mark.req("TS-RMSP2-T2")
@pytest.mark.parametrize("device", DEVICES)
def test_weight_decay(device):
    found = one_step(device, use_v2=True, weight_decay=0)
    assert_is(found, (0.012 / 0.22, 0.0144, 0.1 - 0.012 / 0.22), device)


@pytest.mark.gpu
@pytest.mark.req("TS-RMSP-T2", "TS-RMSP2-T1")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@pytest.mark.parametrize("use_v2", [False, True])
def test_accelerator_and_cpu_give_the_same_bits(use_v2):
    found, expected = (one_step(device, use_v2=use_v2) for device in ("cuda", "cpu"))
    assert all(torch.equal(found[name].cpu(), expected[name]) for name in expected)
