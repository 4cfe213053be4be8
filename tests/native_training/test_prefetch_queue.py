import pytest
import torch

from monolith.native_training import prefetch_queue, queues
from monolith.native_training.prefetch_queue import _GPUCompatiblePaddingFIFOQueue as Queue

NAMES = {
    "AsyncFunctionMgr": queues.AsyncFunctionManager,
    "AsyncPushHook": queues.AsyncPushHook,
    "EnqueueHook": queues.EnqueueHook,
    "MultiQueueRunner": queues.QueueRunner,
    "_FIFOQueue": queues.PrefetchQueue,
    "_MultiFIFOQueue": queues.DevicePrefetchQueue,
    "enqueue_dicts_with_queue_return": queues.prefetch,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_import_path_has_the_name(name):
    assert getattr(prefetch_queue, name) is NAMES[name]


@pytest.mark.req("TS-PFQ-T3")
def test_elements_of_two_dtypes_come_back_in_order():
    queue = Queue(10, [torch.int32, torch.float32], [(), ()])
    for number in range(3):
        queue.enqueue((torch.tensor(number, dtype=torch.int32), torch.tensor(number / 2)))
    taken = [queue.dequeue() for _ in range(3)]
    assert [(i.item(), x.item()) for i, x in taken] == [(0, 0.0), (1, 0.5), (2, 1.0)]


def test_a_queue_has_the_names_that_it_is_given():
    queue = Queue(1, [torch.int64], [(None,)], ["ids"], None, "q")
    assert (queue.name, queue.names, queue.capacity) == ("q", ("ids",), 1)
    assert Queue(1, [torch.int64], [()]).name == "padding_fifo_queue"


@pytest.mark.req("NT-PFQ-T2")
def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="received 1 dtypes and 2 shapes"):
        Queue(1, [torch.int64], [(), ()])
    with pytest.raises(NotImplementedError, match="supports only enqueue and dequeue"):
        Queue(1, [torch.int64], [()]).enqueue_many([])


def test_a_queue_is_not_shared_by_name():
    with pytest.raises(ValueError, match=r"\[q\] expected no shared_name, got 'x'; share it"):
        Queue(1, [torch.int64], [()], shared_name="x", name="q")


@pytest.mark.req("NT-PFQ-T7")
def test_a_queue_gives_tensors_on_the_device_by_name():
    queue = Queue(1, [torch.int64], [(None,)], device="meta")
    queue.enqueue(torch.tensor([7]))
    assert queue.dequeue().device.type == "meta"
