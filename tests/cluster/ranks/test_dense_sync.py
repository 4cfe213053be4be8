"""Gradients of dense parameters, added up over ranks during backward."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from monolith.cluster.ranks import dense_sync
from monolith.cluster.ranks.dense_sync import DenseSync
from monolith.errors import InvalidArgumentError
from tests.cluster.ranks.rank_threads import run_ranks


def parameters(*sizes):
    return [torch.nn.Parameter(torch.ones(size)) for size in sizes]


@pytest.fixture
def _small_buckets(monkeypatch):
    monkeypatch.setattr(dense_sync, "_BUCKET_BYTES", 16)


@pytest.mark.usefixtures("_small_buckets")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_are_the_sums_of_all_ranks(size):
    def body(group):
        ours = parameters(3, 2, 5)
        sync = DenseSync(group.dense, ours, 1)
        sync.wishes = [float(group.rank)]
        sync.begin()
        sum((p * (group.rank + 1)).sum() for p in ours).backward()
        wishes = sync.finish()
        return [p.grad.tolist() for p in ours], wishes

    total = float(sum(range(1, size + 1)))
    expected = [[total] * 3, [total] * 2, [total] * 5], [float(sum(range(size)))]
    assert run_ranks(size, body) == [expected] * size


@pytest.mark.usefixtures("_small_buckets")
def test_a_gradient_is_missing_only_where_no_rank_has_it():
    def body(group):
        ours = parameters(2, 2, 2)
        sync = DenseSync(group.dense, ours, 0)
        sync.begin()
        ours[group.rank].sum().backward()
        sync.finish()
        return [None if p.grad is None else p.grad.tolist() for p in ours]

    assert run_ranks(2, body) == [[[1.0, 1.0], [1.0, 1.0], None]] * 2


def test_a_rank_without_data_takes_part():
    def body(group):
        ours = parameters(2)
        sync = DenseSync(group.dense, ours, 0)
        sync.begin()
        if group.rank == 0:
            ours[0].sum().backward()
        sync.finish()
        return ours[0].grad.tolist()

    assert run_ranks(2, body) == [[1.0, 1.0]] * 2


def test_backwards_before_the_last_send_nothing():
    def body(group):
        ours = parameters(2)
        sync = DenseSync(group.dense, ours, 0)
        ours[0].sum().backward()
        sync.begin()
        ours[0].sum().backward()
        sync.finish()
        return ours[0].grad.tolist()

    assert run_ranks(2, body) == [[4.0, 4.0]] * 2


def test_a_second_gradient_of_one_backward_is_refused():
    """A checkpointed block that is used twice makes the gradients of its parameters twice."""

    def body(group):
        block = torch.nn.Linear(2, 2)
        sync = DenseSync(group.dense, block.parameters(), 0)
        x = torch.ones(1, 2, requires_grad=True)
        for _ in range(2):
            x = checkpoint(block, x, use_reentrant=True)
        sync.begin()
        x.sum().backward()

    with pytest.raises(InvalidArgumentError, match=r"got a second one .* use_reentrant=False"):
        run_ranks(1, body)


def test_values_of_rank_0_are_given_to_all():
    def body(group):
        tensors = [torch.full((2, 2), float(group.rank)).t(), torch.tensor(group.rank)]
        DenseSync(group.dense, [], 0).broadcast(tensors)
        return [tensor.sum().item() for tensor in tensors]

    assert run_ranks(2, body) == [[0.0, 0]] * 2


def test_a_closed_sync_leaves_gradients_alone():
    def body(group):
        ours = parameters(2)
        sync = DenseSync(group.dense, ours, 0)
        sync.begin()
        sync.close()
        ours[0].sum().backward()
        return ours[0].grad.tolist()

    assert run_ranks(2, body) == [[1.0, 1.0]] * 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dtype": torch.float64}, "got torch.float64 on cpu"),
        ({"device": "meta"}, "got torch.float32 on meta"),
    ],
)
def test_parameters_of_another_dtype_or_device_are_refused(options, text):
    wrong = [torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1, **options))]
    with pytest.raises(InvalidArgumentError, match=f"expected float32 parameters on cpu, {text}"):
        DenseSync(None, wrong, 0)


@pytest.mark.usefixtures("_small_buckets")
def test_gradients_of_several_backwards_are_sent_after_the_last_one():
    def body(group):
        ours = parameters(3, 2)
        sync = DenseSync(group.dense, ours, 0)
        sync.begin(2)
        for _ in range(2):
            sum(p.sum() for p in ours).backward()
        sync.finish()
        return [p.grad.tolist() for p in ours]

    assert run_ranks(2, body) == [[[4.0] * 3, [4.0] * 2]] * 2


@pytest.mark.usefixtures("_small_buckets")
def test_the_last_gradients_are_held_until_the_end():
    def body(group):
        ours = parameters(3, 2, 5)
        sync = DenseSync(group.dense, ours, 0)
        sync.begin(holds_last=True)
        sum(p.sum() for p in ours).backward()
        num_early = sync.num_bytes
        sync.finish()
        return num_early, sync.num_bytes

    # Each bucket has one parameter here, and a mark for it.
    assert run_ranks(2, body) == [(4 * (5 + 1 + 2 + 1), 4 * (5 + 1 + 2 + 1 + 3 + 1))] * 2
