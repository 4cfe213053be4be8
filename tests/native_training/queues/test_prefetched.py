import pytest
import torch

from monolith.errors import EndOfQueueError
from monolith.native_training.queues import PENDING, DevicePrefetchQueue, prefetch
from monolith.native_training.queues.queue_runner import EnqueueHook
from monolith.ops import Ragged
from monolith.train import Hook
from monolith.train.driver import drive


@pytest.mark.req("TS-PFQ-T7")
def test_dictionaries_pass_through_in_several_cycles():
    dense = {"a": torch.tensor(1.0), "b": torch.tensor([[2], [3]])}
    ragged = {"r": Ragged.from_lists([[1], [2, 3]])}
    batch, queue = prefetch((dense, ragged), capacity=3)
    for _ in range(3):
        for _ in range(3):
            queue.enqueue_op()
        for _ in range(3):
            first, second = batch()
            assert first["a"].item() == 1.0
            assert first["b"].tolist() == [[2], [3]]
            assert second["r"].to_lists() == [[1], [2, 3]]


@pytest.mark.req("TS-PFQ-T8")
def test_constants_stand_in_the_structure_before_any_element():
    parameter = torch.nn.Parameter(torch.tensor(0.5))
    nested = (
        [{"a": torch.tensor(1.0), "b": "abc", "c": None, "d": None}],
        {"a": parameter, "b": Ragged.from_lists([[1.0]], dtype=torch.float32)},
    )
    batch, queue = prefetch(nested)
    assert batch.static == (
        [{"a": PENDING, "b": "abc", "c": None, "d": None}],
        {"a": parameter, "b": PENDING},
    )
    queue.enqueue_op()
    (first,), second = batch()
    assert (first["a"].item(), first["b"], first["c"], first["d"]) == (1.0, "abc", None, None)
    assert second["a"] is parameter
    assert second["b"].to_lists() == [[1.0]]


@pytest.mark.req("TS-PFQ-T9")
def test_side_effects_of_a_producer_happen_when_an_element_is_put():
    values = torch.zeros(())

    def produce():
        values.add_(1)
        return {"x": torch.ones(1)}

    batch, queue = prefetch(produce)
    assert values.item() == 0
    queue.enqueue_op()
    batch()
    assert values.item() == 1


@pytest.mark.req("TS-PFQ-T10")
@pytest.mark.parametrize("tensors", [{"a": torch.ones(1)}, dict])
def test_capacity_zero_means_no_queue(tensors):
    same, queue = prefetch(tensors, capacity=0)
    assert same is tensors
    assert queue is None


def test_the_options_are_those_of_the_queue():
    _, queue = prefetch({"a": torch.ones(1)}, 3, "batches", timeout_seconds=7)
    made = queue.queue
    assert (made.capacity, made.name, made.timeout_seconds) == (3, "batches", 7)


def test_a_negative_capacity_is_refused():
    with pytest.raises(ValueError, match="at least 1, got -1"):
        prefetch({}, capacity=-1)


@pytest.mark.req("TS-PFQ-T11")
def test_a_run_uses_every_element_of_a_data_set_in_order():
    left, predictions = iter(range(20)), []
    batch, queue = prefetch(lambda: {"x": Ragged.from_lists([[next(left)], []])}, capacity=2)
    drive(lambda: predictions.append(batch()["x"].to_lists()), [EnqueueHook(queue)])
    assert predictions == [[[number], []] for number in range(20)]


@pytest.mark.req("NT-PFQ-T5")
def test_nested_elements_equal_those_without_a_queue():
    generator = torch.Generator().manual_seed(3)

    def make(number):
        lists = [[number] * (number % 3), [number]]
        dense = torch.rand(number, generator=generator)
        return [(dense, {"r": Ragged.from_lists(lists), "n": number}), f"batch {number}"]

    expected = [make(number) for number in range(8)]
    left, got = iter(expected), []
    batch, queue = prefetch(lambda: next(left), capacity=3)
    drive(lambda: got.append(batch()), [EnqueueHook(queue)])
    for (a, name), (b, other) in zip(got, expected, strict=True):
        assert a[0] is b[0]
        assert a[1]["r"].to_lists() == b[1]["r"].to_lists()
        assert (a[1]["n"], name) == (b[1]["n"], other)


def test_an_element_is_a_snapshot_of_the_structure_but_not_of_the_tensors():
    tensor, nested = torch.zeros(1), {}
    nested["a"] = tensor
    batch, queue = prefetch(lambda: nested, capacity=2)
    queue.enqueue_op()
    nested["a"] = torch.ones(1)
    taken = batch()
    assert taken["a"] is tensor
    assert taken is not nested


def test_what_is_taken_twice_from_one_structure_shares_no_container():
    batch, queue = prefetch({"a": [torch.ones(1)]}, capacity=2)
    queue.enqueue_op()
    queue.enqueue_op()
    first, second = batch(), batch()
    assert first["a"] is not second["a"]
    assert first["a"][0] is second["a"][0]


def test_two_devices_travel_together_in_a_structure():
    meta = torch.ones(2, device="meta")
    batch, queue = prefetch({"a": torch.ones(1), "b": (meta,)})
    assert isinstance(queue, DevicePrefetchQueue)
    assert len(queue.queues) == 2
    queue.enqueue_op()
    assert batch()["b"][0] is meta


def test_a_structure_of_a_callable_is_pending_as_a_whole():
    batch, _ = prefetch(lambda: {"a": torch.ones(1)})
    assert batch.static is PENDING
    assert repr(PENDING) == "PENDING"


@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_leaf_that_is_not_supported_is_refused(is_lazy):
    def fill():
        _, queue = prefetch((lambda: {"a": 1.5}) if is_lazy else {"a": 1.5})
        queue.enqueue_op()

    with pytest.raises(ValueError, match=r"Tensor is not supported. 1.5"):
        fill()


def test_a_closed_queue_ends_the_structure():
    batch, queue = prefetch({"a": torch.ones(1)})
    queue.queue.close()
    with pytest.raises(EndOfQueueError):
        batch()


def test_a_run_that_stops_early_leaves_the_rest_in_the_queue():
    left = iter(range(100))
    batch, queue = prefetch(lambda: torch.tensor(next(left)), capacity=2)
    taken = []

    class StopAtThree(Hook):
        def after_run(self, ctx, results):
            if len(taken) == 3:
                ctx.request_stop()

    drive(lambda: taken.append(batch().item()), [EnqueueHook(queue), StopAtThree()])
    rest = [element.tensors[0].item() for element in queue.queue.drain()]
    rest += [tensors[0].item() for tensors in queue.unsent()]
    assert taken == [0, 1, 2]
    assert [*taken, *rest, next(left)] == list(range(3 + len(rest) + 1))
