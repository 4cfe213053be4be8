"""What tests of queues and CUDA streams share."""

import pytest
import torch

from monolith.native_training.queues import ElementSpec
from monolith.ops import Ragged

CYCLES = 200_000_000  # a tenth of a second on a device of 2 GHz
SIZE = 1 << 20


def on_device(test):
    """For tests that need a device with streams."""
    missing = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.gpu(missing(test))


def spec_of(*shapes):
    return ElementSpec([torch.float32] * len(shapes), shapes)


class FakeStream:
    """Stands for a CUDA stream."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def record_event(self):
        return f"mark of {self.name}"

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event}")


class FakeTensor:
    """Stands for a tensor on a CUDA device."""

    is_cuda, device = True, torch.device("cuda", 0)

    def __init__(self, log):
        self.log = log

    def record_stream(self, stream):
        self.log.append(f"used on {stream.name}")


def slow_ragged(number):
    """Rows on the current stream, which are written late."""
    values = torch.zeros(SIZE, dtype=torch.int64, device="cuda")
    splits = torch.tensor([0, SIZE], device="cuda")
    torch.cuda._sleep(CYCLES)
    values.fill_(number)
    return Ragged._unchecked(values, splits)
