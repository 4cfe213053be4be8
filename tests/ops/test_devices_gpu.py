"""Copies between main memory and a CUDA device: nobody waits, and nobody reads too early."""

import pytest
import torch

from monolith.ops.devices import DeviceTransfer, find_device, to_host

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
]
CYCLES = 200_000_000  # a tenth of a second on a device of 2 GHz
SIZE = 1 << 20


@pytest.fixture
def transfer():
    return DeviceTransfer(find_device("[x]", "cuda"))


def test_values_come_back(transfer):
    matrix = torch.empty_strided((64, 9), (16, 1)).copy_(torch.rand(64, 9))
    tensors = [matrix, torch.arange(5), torch.rand(7)[::2]]
    sent = transfer.send(tensors)
    sent.await_on_stream()
    assert {tensor.device for tensor in sent.tensors} == {transfer.device}
    for back, tensor in zip(transfer.fetch(sent.tensors).wait(), tensors, strict=True):
        assert torch.equal(back, tensor)


def test_a_fetch_waits_for_the_work_before_it_and_the_host_does_not(transfer):
    transfer.fetch([torch.full((SIZE,), 1.0, device="cuda")]).wait()  # new memory may synchronise
    torch.cuda.synchronize()
    torch.cuda._sleep(CYCLES)
    late = torch.full((SIZE,), 7.0, device="cuda")
    fetched = transfer.fetch([late])
    assert not fetched.mark.query()
    (copy,) = fetched.wait()
    assert copy.is_pinned()
    assert bool((copy == 7).all())


def test_memory_that_is_freed_early_is_not_overwritten(transfer):
    torch.cuda.synchronize()
    torch.cuda._sleep(CYCLES)
    fetches = []
    for number in range(20):
        sent = transfer.send([torch.full((SIZE,), float(number))])
        sent.await_on_stream()
        fetches.append(transfer.fetch([sent.tensors[0] + 1]))
        del sent
    for number, fetched in enumerate(fetches):
        assert bool((fetched.wait()[0] == number + 1).all())


def test_to_host_waits():
    torch.cuda._sleep(CYCLES)
    (copy,) = to_host([torch.full((SIZE,), 7.0, device="cuda")])
    assert bool((copy == 7).all())
