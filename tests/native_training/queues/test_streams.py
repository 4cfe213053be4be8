import threading

import pytest
import torch

from monolith.native_training.queues import DevicePrefetchQueue, ElementSpec, TensorQueue, prefetch
from monolith.native_training.queues.streams import mark_ready, wait_ready
from monolith.ops import Ragged

CYCLES = 200_000_000  # a tenth of a second on a device of 2 GHz
SIZE = 1 << 20


def on_device(test):
    """For tests that need a device with streams."""
    missing = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.gpu(missing(test))


def test_tensors_on_the_cpu_need_no_mark():
    tensors = [torch.ones(1), torch.ones(1, device="meta")]
    assert mark_ready(tensors) is None
    wait_ready(tensors, None)


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


@pytest.mark.parametrize("is_same", [False, True])
def test_another_stream_waits_and_keeps_the_memory(monkeypatch, is_same):
    log = []
    maker, user = FakeStream("maker", log), FakeStream("user", log)
    tensors = [FakeTensor(log), torch.ones(1), FakeTensor(log)]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: maker)
    ready = mark_ready(tensors)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: maker if is_same else user)
    wait_ready(tensors, ready)
    expected = ["user waits for mark of maker", "used on user", "used on user"]
    assert log == ([] if is_same else expected)


@on_device
@pytest.mark.req("TS-PFQ-T1")
def test_scalars_on_a_device_pass_through():
    queue = TensorQueue(3, ElementSpec([torch.float32], [()]))
    for number in (1.0, 2.0, 3.0):
        queue.enqueue(torch.tensor(number, device="cuda"))
    first, second, third = (queue.dequeue() for _ in range(3))
    result = first + second * third
    assert result.device.type == "cuda"
    assert result.item() == 7.0


@on_device
@pytest.mark.req("TS-PFQ-T2")
def test_a_queue_that_held_device_tensors_takes_cpu_tensors():
    queue = TensorQueue(2, ElementSpec([torch.float32], [(None,)]))
    queue.enqueue(torch.ones(1, device="cuda"))
    queue.enqueue(torch.tensor([2.0, 3.0]))
    assert queue.dequeue().device.type == "cuda"
    taken = queue.dequeue()
    assert taken.device.type == "cpu"
    assert taken.tolist() == [2.0, 3.0]


@on_device
@pytest.mark.req("TS-PFQ-T4")
def test_a_device_tensor_passes_through_itself():
    tensor = torch.tensor(2.0, device="cuda")
    queue = TensorQueue(1, ElementSpec([torch.float32], [()]))
    queue.enqueue(tensor)
    taken = queue.dequeue()
    assert taken is tensor
    assert taken.item() == 2.0


@on_device
@pytest.mark.req("NT-PFQ-T1")
def test_cpu_and_device_tensors_come_back_in_the_original_order():
    tensors = [torch.tensor(1), torch.tensor(2, device="cuda"), torch.tensor(3)]
    queue = DevicePrefetchQueue(tensors, queue_name="q")
    queue.enqueue_op()
    assert all(a is b for a, b in zip(queue.dequeue(), tensors, strict=True))
    assert [one.name for one in queue.queues] == ["q", "q_cuda"]


def slow_ragged(number):
    """Rows on the current stream, which are written late."""
    values = torch.zeros(SIZE, dtype=torch.int64, device="cuda")
    splits = torch.tensor([0, SIZE], device="cuda")
    torch.cuda._sleep(CYCLES)
    values.fill_(number)
    return Ragged._unchecked(values, splits)


@on_device
def test_what_another_stream_still_writes_is_read_after_that():
    numbers = iter(range(1, 4))
    batch, queue = prefetch(
        lambda: {"r": slow_ragged(next(numbers)), "n": torch.ones(1)}, capacity=3
    )

    def fill():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                queue.enqueue_op()

    thread = threading.Thread(target=fill)
    thread.start()
    sums = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            values = batch()["r"].values
            sums.append((values.min(), values.max()))
    thread.join()
    torch.cuda.synchronize()  # `item` waits for its own stream only
    assert [(low.item(), high.item()) for low, high in sums] == [(1, 1), (2, 2), (3, 3)]


@on_device
def test_memory_in_use_by_another_stream_is_not_given_away():
    maker, user = torch.cuda.Stream(), torch.cuda.Stream()
    queue = TensorQueue(1, ElementSpec([torch.float32], [(None,)]))
    with torch.cuda.stream(maker):
        queue.enqueue(torch.full((SIZE,), 7.0, device="cuda"))
    with torch.cuda.stream(user):
        out = torch.zeros(SIZE, device="cuda")
        taken = queue.dequeue()
        torch.cuda._sleep(CYCLES)
        out.copy_(taken)
    del taken
    with torch.cuda.stream(maker):
        others = [torch.full((SIZE,), 9.0, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    assert out.unique().tolist() == [7.0]
    assert len(others) == 4
