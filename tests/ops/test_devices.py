import pytest
import torch

from monolith.ops.devices import DeviceTransfer, find_device, state_on, to_host

CPU = torch.device("cpu")


@pytest.fixture
def transfer():
    """Return a transfer whose device is the CPU: both directions are copies."""
    return DeviceTransfer(CPU)


def test_a_missing_device_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^\[x\] expected one of 0 CUDA devices .* 'cuda:3'"):
        find_device("[x]", "cuda:3")


@pytest.mark.parametrize(
    ("name", "text"),
    [("tpu9", "expected a device of torch, got 'tpu9'"), ("xpu", "expected device cpu, cuda or")],
)
def test_another_kind_of_device_is_refused(name, text):
    with pytest.raises(ValueError, match=text):
        find_device("[x]", name)


TENSORS = {
    "matrix": torch.arange(12.0).reshape(3, 4),
    "column": torch.arange(12.0).reshape(3, 4)[:, 1],
    "times": torch.tensor([1 << 40, -1]),
    "flags": torch.tensor([True, False, True]),
    "none": torch.empty(0, 3),
    "number": torch.tensor(2.5, dtype=torch.float64),
    "sequence": torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2),
}


def test_tensors_of_all_kinds_arrive(transfer):
    sent = transfer.send(list(TENSORS.values()))
    sent.await_on_stream()
    for tensor, expected in zip(sent.tensors, TENSORS.values(), strict=True):
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
        assert torch.equal(tensor, expected)


def test_tensors_travel_in_one_piece(transfer):
    sent = transfer.send([torch.ones(3), torch.ones(2, 2), torch.tensor([1])])
    assert {tensor.untyped_storage().data_ptr() for tensor in sent.tensors} == {
        sent.memory.untyped_storage().data_ptr()
    }


def test_a_source_may_change_after_it_was_sent(transfer):
    source = torch.ones(3)
    sent = transfer.send([source])
    source.zero_()
    assert sent.tensors[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize(("distance", "kept"), [(16, 16), (400, 9)])
def test_rows_keep_a_small_distance(transfer, distance, kept):
    matrix = torch.empty_strided((4, 9), (distance, 1)).fill_(3.0)
    (sent,) = transfer.send([matrix]).tensors
    assert sent.stride() == (kept, 1)
    assert torch.equal(sent, matrix)


def test_sent_tensors_are_no_part_of_a_graph(transfer):
    (sent,) = transfer.send([torch.ones(2, requires_grad=True) * 2]).tensors
    assert sent.is_leaf
    assert not sent.requires_grad


def test_fetched_tensors_are_copies_without_a_graph(transfer):
    source = torch.ones(2, requires_grad=True)
    (copy,) = transfer.fetch([source]).wait()
    source.data.zero_()
    assert copy.tolist() == [1, 1]
    assert not copy.requires_grad


def test_to_host_gives_contiguous_copies():
    source = torch.arange(6.0).reshape(2, 3).t()
    (copy,) = to_host([source])
    assert copy.is_contiguous()
    assert torch.equal(copy, source)
    assert copy.data_ptr() != source.data_ptr()


def test_a_state_moves_but_for_its_count_of_steps():
    meta = torch.device("meta")
    state = {"step": torch.tensor(3.0), "sum": torch.ones(2), "more": [torch.ones(1), 2], "x": None}
    moved = state_on(meta, state)
    assert moved["step"] is state["step"]
    assert moved["sum"].device == moved["more"][0].device == meta
    assert moved["more"][1:] == [2]
    assert moved["x"] is None
