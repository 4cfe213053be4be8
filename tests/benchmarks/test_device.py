import pytest
import torch

from benchmarks.click_model import Sizes
from benchmarks.device import Fit, check, devices
from benchmarks.servers import Click, batches_of
from monolith.ops.devices import DeviceTransfer
from monolith.train import trainer

pytestmark = pytest.mark.thorough


def test_a_fit_tells_the_shares_of_its_step(monkeypatch):
    data = batches_of(Sizes(200, batch=64))
    cpu = DeviceTransfer(torch.device("cpu"))
    plain = Fit(Click(), data)
    monkeypatch.setattr(trainer, "transfer_to", lambda device: cpu)
    copied = Fit(Click(), data)
    check({"cpu": plain, "copied": copied})
    notes = copied.notes()
    assert 0 < notes["wait_share"] < 1
    assert notes["send_ms"] > 0
    assert plain.notes()["copy_share"] == 0
    assert copied.sample(2).value > 0
    assert "cpu" in devices()
