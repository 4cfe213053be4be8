import pytest
import torch

from monolith.errors import FailedPreconditionError, UnavailableError
from monolith.native_training.runner import devices
from monolith.native_training.runner.devices import await_healthy, check_device, device_of


def test_xla_is_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"expected tpu, cuda .*, got 'xla:0'; there is"):
        device_of("xla:0")


def test_unknown_accelerators_are_refused():
    with pytest.raises(ValueError, match=r"expected tpu, cuda or cuda:N, got 'grpc://10.0.0.1'"):
        device_of("grpc://10.0.0.1")


def test_a_device_that_is_not_there_is_an_error():
    number = torch.cuda.device_count()
    with pytest.raises(FailedPreconditionError, match=f"got {number} CUDA devices; start the run"):
        check_device(f"cuda:{number}")


def test_a_device_becomes_healthy_meanwhile():
    tries, pauses = [], []

    def try_out(device):
        tries.append(device)
        if len(tries) < 3:
            raise RuntimeError("busy")

    await_healthy("cuda", try_out=try_out, sleep=pauses.append)
    assert (tries, pauses) == (["cuda"] * 3, [1.0, 1.0])


def test_a_device_that_stays_unhealthy_is_an_error():
    def try_out(device):
        raise RuntimeError("lost")

    with pytest.raises(UnavailableError, match=r"expected a healthy device 'cuda' .* got: lost"):
        await_healthy("cuda", try_out=try_out, seconds=0.0)


def test_a_device_computes_a_sum(monkeypatch):
    await_healthy("cpu")
    monkeypatch.setattr(devices.torch, "ones", lambda *a, **k: torch.zeros(3))
    with pytest.raises(UnavailableError, match="the sum of 1,024 ones is 0"):
        await_healthy("cpu", seconds=0.0)
