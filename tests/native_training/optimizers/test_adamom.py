import pytest
import torch

from monolith.native_training.optimizers.adamom import AdamomOptimizer


@pytest.mark.req("TS-ADAM-T1")
def test_basic():
    w = torch.nn.Parameter(torch.tensor([0.1]))
    optimizer = AdamomOptimizer(
        [w], learning_rate=0.1, weight_decay=0.01, ada_decay=0.99, mom_decay=0.9
    )
    (0.12 * w).sum().backward()
    optimizer.step()
    state = optimizer.named_state([("w", w)])
    assert len({"w": w, **state}) == 4
    expected = {"w/Adamom/m": 0.0121, "w/Adamom/v": 0.014641, "w/Adamom/c": 1.0}
    assert {name: tensor.item() for name, tensor in state.items()} == pytest.approx(expected)
    assert w.item() == pytest.approx(0.090000336, abs=1e-8)
