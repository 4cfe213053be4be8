import pytest
import torch

from monolith.native_training.ops import aligned_flat_concat, aligned_flat_split


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    shapes = [(3,), (4, 4), (), (0, 2), (17,)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_every_tensor_begins_at_a_multiple_of_16_elements(inputs):
    flat = aligned_flat_concat(inputs)
    assert flat.shape == (80,)
    for begin, tensor in zip([0, 16, 32, 48, 48], inputs, strict=True):
        assert torch.equal(flat[begin : begin + tensor.numel()], tensor.view(-1))


def test_gaps_are_zero():
    flat = aligned_flat_concat([torch.ones(3), torch.ones(2)])
    assert flat.sum() == 5
    assert flat.nonzero().view(-1).tolist() == [0, 1, 2, 16, 17]


def test_the_round_trip_is_exact(inputs):
    back = aligned_flat_split(inputs, aligned_flat_concat(inputs))
    assert all(torch.equal(x, y) for x, y in zip(back, inputs, strict=True))


def test_elements_are_scaled_and_the_inputs_stay_as_they_are():
    tensor = torch.tensor([2.0, 4.0])
    assert aligned_flat_concat([tensor], 0.25)[:3].tolist() == [0.5, 1, 0]
    assert tensor.tolist() == [2, 4]


def test_one_input_without_gaps_is_copied():
    tensor = torch.ones(16)
    aligned_flat_concat([tensor], 2.0)
    assert tensor.sum() == 16


def test_parts_are_views(inputs):
    flat = aligned_flat_concat(inputs)
    aligned_flat_split(inputs, flat)[1].zero_()
    assert flat[16:32].tolist() == [0] * 16


def test_gradients_pass_both():
    tensors = [torch.ones(3, requires_grad=True), torch.ones(2, 2, requires_grad=True)]
    first, second = aligned_flat_split(tensors, aligned_flat_concat(tensors, 3.0))
    (first.sum() + 2 * second.sum()).backward()
    assert tensors[0].grad.tolist() == [3, 3, 3]
    assert tensors[1].grad.tolist() == [[6, 6], [6, 6]]


def test_wrong_inputs_are_refused():
    with pytest.raises(ValueError, match="expected at least 1 tensor, got 0"):
        aligned_flat_concat([])
    with pytest.raises(TypeError, match="of a floating dtype, got int64"):
        aligned_flat_concat([torch.arange(2)])
    with pytest.raises(TypeError, match=r"float32, that of 'inputs\[0\]', got float64 of"):
        aligned_flat_concat([torch.ones(1), torch.ones(1).double()])


def test_another_vector_is_refused(inputs):
    with pytest.raises(TypeError, match="expected flat as a tensor, got list"):
        aligned_flat_split(inputs, [1.0])
    with pytest.raises(ValueError, match=r"expected flat of shape \(80,\), got \(81,\); make it"):
        aligned_flat_split(inputs, torch.ones(81))
    with pytest.raises(ValueError, match=r"got \(80, 1\)"):
        aligned_flat_split(inputs, torch.ones(80, 1))
