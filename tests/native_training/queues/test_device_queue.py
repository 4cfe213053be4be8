import contextlib
import threading

import pytest
import torch

from monolith.native_training.queues import (
    DevicePrefetchQueue,
    PrefetchQueue,
    TensorQueue,
    prefetch,
)
from monolith.native_training.queues.streams import DeviceCopier, wait_ready
from monolith.ops import Ragged
from monolith.ops.devices import find_device
from tests.native_training.queues.devices import FakeStream, FakeTensor


@pytest.mark.req("NT-PFQ-T7")
@pytest.mark.parametrize("device", ["meta", "cpu", torch.device("cpu", 0)])
def test_a_queue_with_a_device_gives_tensors_on_it(device):
    queue = TensorQueue(1, device=device)
    assert queue.device == torch.device(torch.device(device).type)
    queue.enqueue((torch.ones(2), torch.tensor(3)))
    taken = queue.dequeue()
    assert [(one.device, one.shape, one.dtype) for one in taken] == [
        (queue.device, (2,), torch.float32),
        (queue.device, (), torch.int64),
    ]


def test_a_queue_without_a_device_leaves_tensors_where_they_are():
    assert TensorQueue(1).device is None


def test_tensors_that_are_on_the_device_are_not_copied():
    queue, tensor = TensorQueue(1, device="cpu"), torch.ones(1)
    queue.enqueue(tensor)
    assert queue.dequeue() is tensor


def test_autograd_does_not_record_a_copy():
    queue = TensorQueue(1, device="meta")
    queue.enqueue(torch.ones(1, requires_grad=True) * 2)
    assert not queue.dequeue().requires_grad


def test_a_tensor_without_data_is_refused():
    queue = TensorQueue(1, name="q", device="cpu")
    with pytest.raises(ValueError, match=r"\(queue 'q'\) expected tensors with data for .* 'cpu'"):
        queue.enqueue(torch.ones(1, device="meta"))
    assert queue.size() == 0


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("gpu7x", "expected a device of torch, got 'gpu7x'"),
        ("xla", "expected device cpu, cuda or meta, got 'xla'"),
        ("cuda:2", "expected one of 2 CUDA devices of this machine, got 'cuda:2'; name another"),
    ],
)
def test_a_device_that_is_not_there_is_refused_when_the_queue_is_made(monkeypatch, device, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=words):
        TensorQueue(1, device=device)


@pytest.mark.parametrize("make", [TensorQueue, PrefetchQueue, prefetch])
def test_cuda_is_refused_where_there_is_none(monkeypatch, make):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="one of 0 CUDA devices of this machine, got 'cuda'"):
        make(1, device="cuda") if make is TensorQueue else make([torch.ones(1)], 1, device="cuda")


def test_cuda_without_a_number_is_the_current_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert find_device("x", "cuda") == torch.device("cuda", 1)


@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_prefetched_structure_comes_out_on_the_device(is_lazy):
    nested = {"r": Ragged.from_lists([[7], []]), "x": (torch.ones(2), "name", None)}
    batch, queue = prefetch((lambda: nested) if is_lazy else nested, 2, device="meta")
    queue.enqueue_op()
    taken = batch()
    assert len(queue.queues) == 1
    assert {taken["r"].values.device.type, taken["x"][0].device.type} == {"meta"}
    assert (taken["r"].values.shape, taken["x"][1:]) == ((1,), ("name", None))


@pytest.mark.parametrize("kind", [PrefetchQueue, DevicePrefetchQueue])
def test_producers_of_two_devices_share_a_queue_with_a_device(kind):
    tensors = [torch.ones(1), torch.ones(2, device="meta"), torch.ones(3)]
    queue = kind(tensors, device="meta")
    queue.enqueue_op()
    assert [(one.device.type, len(one)) for one in queue.dequeue()] == [
        ("meta", n) for n in (1, 2, 3)
    ]
    assert queue.queue.device == torch.device("meta")


def test_pairs_on_two_devices_stay_together_with_several_producers_and_consumers():
    queue = DevicePrefetchQueue([lambda: None], capacity=2)
    numbers = iter(range(200))
    lock = threading.Lock()

    def produce():
        with lock:
            number = next(numbers)
        return [torch.tensor(number), torch.ones(number, device="meta")], None

    queue._produce = produce
    pairs = []

    def fill():
        for _ in range(50):
            queue.enqueue_op()

    def empty():
        pairs.extend(queue.dequeue() for _ in range(50))

    threads = [threading.Thread(target=work) for work in (fill, empty) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number.item() for number, _ in pairs) == list(range(200))
    assert all(number.item() == len(ones) for number, ones in pairs)


class FakeSideStream(FakeStream):
    """Stands for the stream of a copier."""

    def wait_stream(self, stream):
        self.log.append(f"{self.name} waits for {stream.name}")


class FakeSource(FakeTensor):
    """Stands for a tensor that is staged, copied, or there already."""

    is_meta = False

    def __init__(self, log, device):
        super().__init__(log)
        self.device = torch.device(device)

    def copy_(self, source):
        self.log.append("staged")
        return self

    def to(self, device, *, non_blocking):
        assert non_blocking
        self.log.append(f"copied on {self.log.current.name}")
        return FakeSource(self.log, device)


@pytest.mark.req("NT-PFQ-T7")
@pytest.mark.parametrize("others", [[], ["cuda:0"]])
def test_copies_are_staged_and_made_on_the_stream_of_the_copier(monkeypatch, others):
    class Log(list):
        current = None

    log = Log()
    maker, side, user = (
        FakeStream("maker", log),
        FakeSideStream("side", log),
        FakeStream("user", log),
    )

    @contextlib.contextmanager
    def on_stream(stream):
        log.current = stream
        yield
        log.current = maker

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: log.current or maker)
    monkeypatch.setattr(
        torch, "empty_like", lambda tensor, pin_memory: FakeSource(log, tensor.device)
    )
    sources = [FakeSource(log, device) for device in ["cpu", *others]]
    copies, ready = DeviceCopier("x", "cuda:0").copy(sources)
    log.current = user
    wait_ready(copies, ready)
    assert log == [
        *["side waits for maker"] * len(others),
        "staged",
        "copied on side",
        "user waits for mark of side",
        *["used on user"] * len(copies),
    ]
    assert copies[1:] == tuple(sources[1:])
