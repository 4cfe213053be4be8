import pytest
import torch

from monolith.errors import CancelledError
from monolith.native_training.queues import ElementSpec, TensorQueue
from tests.native_training.queues.threads import Call, until_waiting

INTS_AND_FLOATS = ElementSpec([torch.int32, torch.float32], [(None, 2), ()])


def element(number, rows=1):
    return torch.full((rows, 2), number, dtype=torch.int32), torch.tensor(number / 2)


def test_elements_come_out_in_order_and_are_not_copied():
    queue = TensorQueue(2, INTS_AND_FLOATS)
    given = [element(1), element(2, rows=3)]
    for tensors in given:
        queue.enqueue(tensors)
    for tensors in given:
        assert all(a is b for a, b in zip(queue.dequeue(), tensors, strict=True))


def test_one_component_is_given_and_taken_alone():
    queue = TensorQueue(2, ElementSpec([torch.float32], [()]))
    queue.enqueue(torch.tensor(2.0))
    queue.enqueue([torch.tensor(3.0)])
    assert (queue.dequeue() + queue.dequeue()).item() == 5.0


def test_with_names_elements_are_dictionaries():
    queue = TensorQueue(1, INTS_AND_FLOATS, names=["ids", "label"])
    ids, label = element(1)
    queue.enqueue({"label": label, "ids": ids})
    assert queue.dequeue() == {"ids": ids, "label": label}


@pytest.mark.parametrize(
    ("values", "got"), [({"ids": 1}, r"\['ids'\]"), ([1, 2], "list"), ({"a": 1, "b": 2}, "a")]
)
def test_other_names_are_refused(values, got):
    queue = TensorQueue(1, INTS_AND_FLOATS, names=["label", "ids"], name="q")
    with pytest.raises(ValueError, match=rf"dictionary of \['ids', 'label'\], got .*{got}.*'q'"):
        queue.enqueue(values)


def test_a_wrong_number_of_names_is_refused():
    with pytest.raises(ValueError, match=r"expected 2 names, one per component, got 1 \(queue 'q'"):
        TensorQueue(1, INTS_AND_FLOATS, names=["a"], name="q")


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda ids, label: (ids.long(), label), r"int64 \[1, 2\], float32 \[\]"),
        (lambda ids, label: (ids[0], label), r"int32 \[2\], float32 \[\]"),
        (lambda ids, label: (ids[:, :1], label), r"int32 \[1, 1\], float32 \[\]"),
        (lambda ids, label: (ids,), r"1 tensors \(int32 \[1, 2\]\)"),
        (lambda ids, label: (ids, label, label), r"3 tensors"),
    ],
)
def test_other_tensors_are_refused(change, got):
    queue = TensorQueue(1, INTS_AND_FLOATS, name="q")
    expected = r"\(queue 'q'\) expected 2 tensors \(int32 \[None, 2\], float32 \[\]\), got .*"
    with pytest.raises(ValueError, match=expected + got):
        queue.enqueue(change(*element(1)))
    assert queue.size() == 0


def test_what_is_no_tensor_is_refused():
    queue = TensorQueue(1, INTS_AND_FLOATS, name="q")
    with pytest.raises(TypeError, match=r"\(queue 'q'\) expected tensors, got float"):
        queue.enqueue((element(1)[0], 0.5))


def test_a_queue_without_a_spec_takes_that_of_the_first_element():
    queue = TensorQueue(2)
    queue.enqueue(element(1))
    queue.enqueue(element(1, rows=7))
    with pytest.raises(ValueError, match="got 1 tensors"):
        queue.enqueue(torch.ones(1))


@pytest.mark.req("NT-PFQ-T2")
def test_different_numbers_of_dtypes_and_shapes_are_refused():
    text = "Shapes must be provided for all components, but received 2 dtypes and 1 shapes."
    with pytest.raises(ValueError, match=text):
        ElementSpec([torch.int32, torch.float32], [()])


def test_a_dtype_that_is_none_of_torch_is_refused():
    with pytest.raises(TypeError, match="expected dtypes of torch, got 'int32'"):
        ElementSpec(["int32"], [()])


def test_a_negative_size_is_refused():
    with pytest.raises(ValueError, match=r"at least 0, got \[\[-1, 2\]\]; None stands"):
        ElementSpec([torch.int32], [(-1, 2)])


@pytest.mark.req("NT-PFQ-T2")
@pytest.mark.parametrize("verb", ["enqueue_many", "dequeue_many"])
def test_many_at_once_are_refused(verb):
    with pytest.raises(NotImplementedError, match="supports only enqueue and dequeue"):
        getattr(TensorQueue(1, INTS_AND_FLOATS), verb)(3)


def test_enqueue_waits_while_full_and_dequeue_while_empty():
    queue = TensorQueue(1, INTS_AND_FLOATS)
    dequeue = Call(queue.dequeue)
    until_waiting(queue)
    queue.enqueue(element(1))
    assert dequeue.result()[1].item() == 0.5
    queue.enqueue(element(2))
    enqueue = Call(queue.enqueue, element(3))
    until_waiting(queue)
    assert queue.dequeue()[1].item() == 1.0
    enqueue.result()


def test_a_closed_queue_refuses_enqueue_and_hands_out_what_is_left():
    queue = TensorQueue(2, INTS_AND_FLOATS)
    queue.enqueue(element(1))
    queue.close()
    with pytest.raises(CancelledError):
        queue.enqueue(element(2))
    assert queue.dequeue()[1].item() == 0.5
    with pytest.raises(CancelledError):
        queue.dequeue()


def test_tensors_of_several_devices_may_be_in_one_element():
    queue = TensorQueue(1, ElementSpec([torch.int32] * 2, [()] * 2))
    queue.enqueue(
        (torch.tensor(1, dtype=torch.int32), torch.empty((), dtype=torch.int32).to("meta"))
    )
    assert [tensor.device.type for tensor in queue.dequeue()] == ["cpu", "meta"]


def test_gradients_pass_through_a_queue():
    queue = TensorQueue(1, ElementSpec([torch.float32], [()]))
    leaf = torch.tensor(3.0, requires_grad=True)
    queue.enqueue(leaf * 2)
    queue.dequeue().backward()
    assert leaf.grad.item() == 2.0
