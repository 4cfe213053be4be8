from unittest.mock import Mock

import pytest
import torch

from monolith.errors import CancelledError, FailedPreconditionError, QueueFullError
from monolith.native_training.ops import NestedTensors
from monolith.native_training.queues import DevicePrefetchQueue, PrefetchQueue
from monolith.ops import Ragged
from tests.native_training.queues.threads import Call, until_waiting

BOTH = pytest.mark.parametrize("kind", [PrefetchQueue, DevicePrefetchQueue])


def numbers(stop=100, device="cpu"):
    """A producer of the tensors 0, 1, 2, ... in the value and in the shape."""
    left = iter(range(stop))

    def produce():
        number = next(left)
        return torch.full((number,), number, device=device)

    return produce


@pytest.mark.req("TS-PFQ-T5")
def test_dense_and_ragged_tensors_pass_through():
    nested = NestedTensors(
        [
            torch.tensor(2.0),
            torch.tensor([[3], [4]]),
            Ragged.from_lists([[2], [-1, 3]]),
            Ragged.from_lists([[1.0], []], dtype=torch.float32),
        ]
    )
    queue = PrefetchQueue(nested.get_tensors())
    queue.enqueue_op()
    scalar, column, first, second = nested.get_nested_result(queue.dequeue())
    assert (scalar.item(), column.tolist()) == (2.0, [[3], [4]])
    assert (first.to_lists(), second.to_lists()) == ([[2], [-1, 3]], [[1.0], []])


@pytest.mark.req("TS-PFQ-T6")
@BOTH
def test_as_many_elements_fit_as_the_capacity_says(kind):
    queue = kind([torch.tensor([2])], capacity=4)
    for _ in range(4):
        queue.enqueue_op()
    assert queue.size() == 4
    with pytest.raises(QueueFullError):
        queue.enqueue_op(timeout_seconds=0)
    assert [queue.dequeue()[0].tolist() for _ in range(4)] == [[2]] * 4


@BOTH
def test_one_tensor_is_a_list_of_one(kind):
    tensor = torch.ones(1)
    queue = kind([tensor])
    queue.enqueue_op()
    (taken,) = queue.dequeue()
    assert taken is tensor


@pytest.mark.req("NT-PFQ-T1")
@pytest.mark.parametrize("is_lazy", [False, True])
def test_tensors_of_two_devices_come_back_in_the_original_order(is_lazy):
    tensors = [torch.ones(1), torch.ones(2, device="meta"), torch.ones(3)]
    made = [lambda tensor=tensor: tensor for tensor in tensors] if is_lazy else tensors
    queue = DevicePrefetchQueue(made, queue_name="q")
    queue.enqueue_op()
    assert all(a is b for a, b in zip(queue.dequeue(), tensors, strict=True))
    assert [one.name for one in queue.queues] == ["q", "q_meta"]
    assert queue.name == "q"
    with pytest.raises(NotImplementedError, match="expected one queue, got 2; use `queues`"):
        _ = queue.queue


def test_who_waits_for_the_first_element_gets_its_parts_on_both_devices():
    queue = DevicePrefetchQueue([lambda: torch.ones(1), lambda: torch.ones(2, device="meta")])
    get = Call(queue.dequeue)
    until_waiting(queue.queues[0])
    queue.enqueue_op()
    assert [tensor.device.type for tensor in get.result()] == ["cpu", "meta"]


@BOTH
def test_without_an_accelerator_there_is_one_queue(kind):
    queue = kind([torch.ones(1)])
    assert queue.queues == [queue.queue]


def test_the_queue_of_the_cpu_exists_without_tensors_for_it():
    queue = DevicePrefetchQueue([torch.ones(1, device="meta")])
    queue.enqueue_op()
    assert [one.size() for one in queue.queues] == [1, 1]
    assert queue.size() == 1
    assert [tensor.device.type for tensor in queue.dequeue()] == ["meta"]


def test_one_queue_takes_tensors_of_all_devices():
    queue = PrefetchQueue([torch.ones(1), torch.ones(2, device="meta")])
    queue.enqueue_op()
    assert [tensor.device.type for tensor in queue.dequeue()] == ["cpu", "meta"]


@BOTH
def test_producers_are_called_once_for_each_element(kind):
    produce = numbers()
    queue = kind([produce, torch.ones(1)], capacity=3)
    for _ in range(3):
        queue.enqueue_op()
    assert [queue.dequeue()[0].numel() for _ in range(3)] == [0, 1, 2]
    assert produce().numel() == 3


@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "meta")])
@pytest.mark.parametrize("end", ["close", "cancel", "limit"])
def test_an_element_that_could_not_be_put_is_kept_and_put_first(devices, end):
    queue = DevicePrefetchQueue([numbers(device=device) for device in devices], capacity=1)
    queue.enqueue_op()
    put = Call(queue.enqueue_op, 0 if end == "limit" else None)
    if end != "limit":
        until_waiting(queue.queues[0])
        getattr(queue.queues[0], end)()
    with pytest.raises((CancelledError, QueueFullError)):
        put.result()
    assert [tensors[0].numel() for tensors in queue.unsent()] == [1]
    queue.queues[0].reopen()
    assert queue.dequeue()[-1].numel() == 0
    queue.enqueue_op()
    assert not queue.unsent()
    assert queue.dequeue()[-1].numel() == 1


@BOTH
def test_an_element_that_is_made_when_ctrl_c_comes_is_kept(kind, monkeypatch):
    queue = kind([numbers()], capacity=1)
    queue.enqueue_op()
    monkeypatch.setattr(queue.queue._changed, "wait", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        queue.enqueue_op()
    queue.dequeue()
    queue.enqueue_op()
    assert queue.dequeue()[0].numel() == 1


@BOTH
def test_an_element_that_is_put_when_ctrl_c_comes_is_not_put_again(kind, monkeypatch):
    queue = kind([numbers()], capacity=1)
    monkeypatch.setattr(queue.queue._changed, "notify_all", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        queue.enqueue_op()
    assert queue.size() == 1
    assert not queue.unsent()


@BOTH
def test_a_producer_that_raises_puts_nothing(kind):
    queue = kind([numbers(stop=0)])
    with pytest.raises(StopIteration):
        queue.enqueue_op()
    assert queue.size() == 0
    assert not queue.unsent()


def test_other_numbers_of_tensors_on_two_devices_are_refused():
    tensors = [torch.ones(1), torch.ones(2, device="meta")]

    class Growing(DevicePrefetchQueue):
        def _produce(self):
            tensors.append(torch.ones(1))
            return list(tensors), None

    queue = Growing([lambda: None], queue_name="q")
    queue.enqueue_op()
    with pytest.raises(ValueError, match=r"expected 3 tensors, got 4 \(queue 'q'\)"):
        queue.enqueue_op()


@BOTH
def test_an_element_of_another_dtype_is_refused(kind):
    dtypes = iter([torch.int64, torch.int32])
    queue = kind([lambda: torch.ones(1, dtype=next(dtypes))])
    queue.enqueue_op()
    with pytest.raises(ValueError, match=r"int64 \[None\]\), got 1 tensors \(int32 \[1\]\)"):
        queue.enqueue_op()


@pytest.mark.req("NT-PFQ-T2")
@BOTH
def test_none_and_other_types_are_refused(kind):
    with pytest.raises(ValueError, match="expected dense_list, got None"):
        kind(None)
    with pytest.raises(TypeError, match="expected dense_list as a list, got tuple"):
        kind((torch.ones(1),))


def test_a_compiled_function_that_makes_a_queue_is_not_compiled():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    def double(tensor):
        queue = PrefetchQueue([tensor * 2])
        queue.enqueue_op()
        return queue.dequeue()[0] + 1

    assert torch.compile(double, backend=backend)(torch.ones(2)).tolist() == [3.0, 3.0]
    assert not graphs


def test_a_queue_is_not_made_while_code_is_compiled(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(FailedPreconditionError, match=r"outside of compiled code \(queue 'q'\)"):
        PrefetchQueue([torch.ones(1)], queue_name="q")
