import pytest
import torch

from monolith.native_training.queues import (
    DevicePrefetchQueue,
    EnqueueHook,
    TensorQueue,
    prefetch,
)
from monolith.ops import Ragged
from monolith.train.driver import drive
from tests.native_training.queues.devices import (
    CYCLES,
    SIZE,
    on_device,
    slow_ragged,
    spec_of,
)

HERE_AND_ON_A_DEVICE = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)


@HERE_AND_ON_A_DEVICE
@pytest.mark.req("TS-PFQ-T1")
def test_scalars_come_out_on_the_device_of_the_queue(device):
    queue = TensorQueue(3, spec_of(()), device=device)
    for number in (1.0, 2.0, 3.0):
        queue.enqueue(torch.tensor(number))
    first, second, third = (queue.dequeue() for _ in range(3))
    result = first + second * third
    assert result.device.type == device
    assert result.item() == 7.0


@HERE_AND_ON_A_DEVICE
@pytest.mark.req("TS-PFQ-T2")
def test_cpu_tensors_that_passed_a_queue_with_a_device_read_the_same(device):
    queue = TensorQueue(2, spec_of((None,)), device=device)
    queue.enqueue(torch.tensor([2.0, 3.0]))
    queue.enqueue(torch.tensor([4.0]))
    taken = [queue.dequeue(), queue.dequeue()]
    assert {one.device.type for one in taken} == {device}
    assert [one.cpu().tolist() for one in taken] == [[2.0, 3.0], [4.0]]


@on_device
@pytest.mark.req("TS-PFQ-T4")
def test_a_device_tensor_passes_through_itself():
    tensor = torch.tensor(2.0, device="cuda")
    queue = TensorQueue(1, spec_of(()), device="cuda")
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


SOURCES = {
    "scalar": torch.tensor(2.5),
    "empty": torch.ones(0, 3),
    "int64": torch.tensor([1 << 62, -1]),
    "bool": torch.tensor([True, False]),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "expanded": torch.tensor([3.0]).expand(4),
    "slice": torch.arange(10.0)[1::3],
}


@on_device
@pytest.mark.req("NT-PFQ-T7")
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_values_of_cpu_tensors_come_out_on_the_device(source):
    queue = TensorQueue(1, device="cuda")
    queue.enqueue(source)
    taken = queue.dequeue()
    assert taken.device == torch.device("cuda", torch.cuda.current_device())
    assert torch.equal(taken.cpu(), source)


@pytest.fixture
def queue():
    """A queue with a device, whose memory on host and device was used before, for other numbers."""
    torch.cuda._sleep(1)  # kernels are loaded
    queue = TensorQueue(4, spec_of((None,)), device="cuda")
    for number in (-1.0, -2.0):
        queue.enqueue(torch.full((SIZE,), number))
    for _ in range(2):
        taken = queue.dequeue()
        taken.min(), taken.max()
    torch.cuda.synchronize()
    return queue


def delay(queue):
    """Let the copies of the queue begin late."""
    with torch.cuda.stream(queue._copier.stream):
        torch.cuda._sleep(CYCLES)


@pytest.fixture
def no_host_waits():
    """Makes calls that wait for the device raise."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@on_device
@pytest.mark.req("NT-PFQ-T7")
@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_source_may_be_overwritten_before_it_is_copied(queue, is_pinned):
    source = torch.full((SIZE,), 7.0)
    source = source.pin_memory() if is_pinned else source
    delay(queue)
    queue.enqueue(source)
    source.fill_(9.0)
    taken = queue.dequeue()
    low, high = taken.min(), taken.max()  # on a stream that has to wait for the copy
    assert (low.item(), high.item()) == (7.0, 7.0)


@on_device
@pytest.mark.req("NT-PFQ-T7")
def test_pinned_memory_of_a_copy_is_not_given_away_before_the_copy(queue):
    delay(queue)
    queue.enqueue(torch.full((SIZE,), 7.0))
    others = [torch.full((SIZE,), 9.0, pin_memory=True) for _ in range(4)]
    assert queue.dequeue().unique().tolist() == [7.0]
    assert len(others) == 4


@on_device
@pytest.mark.req("NT-PFQ-T7")
def test_memory_of_a_copy_is_not_given_to_the_next_copy_while_it_is_in_use(queue):
    queue.enqueue(torch.full((SIZE,), 7.0))
    with torch.cuda.stream(torch.cuda.Stream()):
        out = torch.zeros(SIZE, device="cuda")
        taken = queue.dequeue()
        torch.cuda._sleep(CYCLES)
        out.copy_(taken)
    del taken
    for _ in range(4):
        queue.enqueue(torch.full((SIZE,), 9.0))
    torch.cuda.synchronize()
    assert out.unique().tolist() == [7.0]


@on_device
@pytest.mark.req("NT-PFQ-T7")
def test_a_copy_ends_while_another_stream_works(queue):
    worker = torch.cuda.Stream()
    with torch.cuda.stream(worker):
        torch.cuda._sleep(20 * CYCLES)
    busy = worker.record_event()
    queue.enqueue(torch.full((SIZE,), 7.0))
    element = queue.get()
    stream, copied = element.ready[queue.device]
    copied.synchronize()
    assert not busy.query()
    assert stream not in (worker, torch.cuda.current_stream())
    assert element.use()[0].unique().tolist() == [7.0]
    torch.cuda.synchronize()


@on_device
@pytest.mark.req("NT-PFQ-T7")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_host_waits_for_nothing(queue, no_host_waits):
    delay(queue)
    queue.enqueue(torch.full((SIZE,), 7.0))
    taken = queue.dequeue()
    done = torch.cuda.current_stream().record_event()
    is_done = done.query()
    torch.cuda.set_sync_debug_mode("default")
    assert not is_done
    assert taken.unique().tolist() == [7.0]


@on_device
@pytest.mark.req("NT-PFQ-T7")
def test_an_element_with_tensors_of_both_sides_waits_for_their_makers(queue):
    pairs = TensorQueue(1, spec_of((None,), (None,)), device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        pairs.enqueue((slow_ragged(3).values.float(), torch.tensor([4.0])))
    with torch.cuda.stream(torch.cuda.Stream()):
        late, copied = pairs.dequeue()
        results = late.min(), late.max(), copied.sum()
    torch.cuda.synchronize()
    assert [one.item() for one in results] == [3.0, 3.0, 4.0]


@on_device
@pytest.mark.req("NT-PFQ-T7")
def test_a_queue_of_the_cpu_waits_for_what_the_device_still_writes():
    queue = TensorQueue(1, device="cpu")
    queue.enqueue(slow_ragged(3).values)
    taken = queue.dequeue()
    assert taken.device.type == "cpu"
    assert (taken.min().item(), taken.max().item()) == (3, 3)


@on_device
@pytest.mark.req("NT-PFQ-T7")
def test_batches_of_a_thread_come_out_on_the_device_in_order():
    numbers, sums = iter(range(5)), []

    def make():
        number = next(numbers)
        return {"ids": Ragged.from_lists([[number], [number] * SIZE]), "n": number}

    batch, filled = prefetch(make, capacity=2, device="cuda")

    def step():
        taken = batch()
        sums.append((taken["ids"].values.sum(), taken["n"]))

    drive(step, [EnqueueHook(filled)])
    assert [(one.item(), number) for one, number in sums] == [
        (number * (SIZE + 1), number) for number in range(5)
    ]
    assert {one.device.type for one, _ in sums} == {"cuda"}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_tensors_go_from_one_device_to_another():
    queue = TensorQueue(1, device="cuda:1")
    queue.enqueue(slow_ragged(3).values)
    taken = queue.dequeue()
    assert taken.device == torch.device("cuda", 1)
    assert (taken.min().item(), taken.max().item()) == (3, 3)
