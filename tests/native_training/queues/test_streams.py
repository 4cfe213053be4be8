import threading

import pytest
import torch

from monolith.native_training.queues import TensorQueue, prefetch
from monolith.native_training.queues.streams import mark_ready, wait_ready
from tests.native_training.queues.devices import (
    CYCLES,
    SIZE,
    FakeStream,
    FakeTensor,
    on_device,
    slow_ragged,
    spec_of,
)


def test_tensors_on_the_cpu_need_no_mark():
    tensors = [torch.ones(1), torch.ones(1, device="meta")]
    assert mark_ready(tensors) is None
    wait_ready(tensors, None)


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
    queue = TensorQueue(1, spec_of((None,)))
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
