import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.native_training.ops import StaticReshapeNBuilder, static_reshape
from tests.native_training.ops.cases import refused


@pytest.mark.req("NT-SRSH-T1")
def test_positions_are_consecutive_and_address_the_outputs():
    builder = StaticReshapeNBuilder()
    inputs = [torch.full((2, 3), i) for i in range(4)]
    positions = [builder.add(tensor, (3, None)) for tensor in inputs]
    outputs, sizes = builder.build()
    assert positions == [0, 1, 2, 3]
    assert [int(outputs[position][0, 0]) for position in positions] == positions
    assert sizes.tolist() == [6] * 4


def test_a_builder_can_build_again():
    builder = StaticReshapeNBuilder()
    builder.add(torch.ones(4), (2, 2))
    builder.build()
    builder.add(torch.ones(6), (6,))
    assert builder.build()[1].tolist() == [4, 6]


SHAPES = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), max_size=5)


@pytest.mark.req("NT-SRSH-T3")
@given(shapes=SHAPES, data=st.data())
def test_outputs_equal_those_of_torch(shapes, data):
    inputs = [torch.arange(math.prod(shape)).reshape(shape) for shape in shapes]
    wanted = [data.draw(st.permutations(shape)) for shape in shapes]
    unknown = [data.draw(st.sampled_from([None, *range(len(shape))])) for shape in shapes]
    targets = [
        tuple(None if i == at else dim for i, dim in enumerate(shape))
        for shape, at in zip(wanted, unknown, strict=True)
    ]
    outputs, sizes = static_reshape(inputs, targets)
    for output, tensor, shape in zip(outputs, inputs, wanted, strict=True):
        assert torch.equal(output, tensor.reshape(shape))
    assert sizes.tolist() == [tensor.numel() for tensor in inputs]
    assert sizes.dtype == torch.int64


def test_outputs_share_the_memory_of_contiguous_inputs():
    tensor = torch.ones(4, 10)
    assert static_reshape([tensor], [(5, 8)])[0][0].data_ptr() == tensor.data_ptr()


def test_an_input_that_is_not_contiguous_is_copied():
    tensor = torch.arange(6).reshape(2, 3).T
    assert static_reshape([tensor], [(None,)])[0][0].tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.req("NT-SRSH-T2")
def test_gradients_pass_a_reshape():
    tensors = [torch.rand(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda *x: static_reshape(x, [(6,), (3, None)])[0], tensors)


@pytest.mark.req("NT-SRSH-T2")
@pytest.mark.parametrize(
    "shape", [(7,), (2, 2), (None, 4), (None, None), (0, None), (-1,), (-2, -3), ()]
)
def test_a_shape_that_does_not_fit_is_refused(shape):
    text = (
        "[static_reshape] expected a shape for the 6 elements of input 1 of shape (2, 3), "
        f"got {shape}; one dimension may be None"
    )
    refused(ValueError, text, static_reshape, [torch.ones(6), torch.ones(2, 3)], [(6,), shape])


def test_an_unknown_dimension_beside_no_elements_is_refused():
    with pytest.raises(ValueError, match=r"0 elements of input 0 of shape \(0,\), got \(0, None\)"):
        static_reshape([torch.ones(0)], [(0, None)])


def test_no_elements_and_a_scalar_can_be_reshaped():
    outputs, sizes = static_reshape([torch.ones(0), torch.ones(1)], [(None, 2), ()])
    assert [tuple(output.shape) for output in outputs] == [(0, 2), ()]
    assert sizes.tolist() == [0, 1]


def test_another_number_of_shapes_is_refused():
    text = "[static_reshape] expected a shape for each input, got 1 inputs and 2 shapes"
    refused(ValueError, text, static_reshape, [torch.ones(6)], [(6,), (6,)])


def test_an_input_that_is_no_tensor_is_refused():
    text = "[static_reshape] expected input 0 as a tensor, got list"
    refused(TypeError, text, static_reshape, [[1, 2]], [(2,)])


def test_a_compiled_function_reshapes_and_differentiates(compiled):
    tensor = torch.arange(6.0, requires_grad=True)
    function = compiled(lambda x: static_reshape([x, x * 2], [(2, None), (3, 2)]))
    (first, second), sizes = function(tensor)
    assert [tuple(first.shape), tuple(second.shape), sizes.tolist()] == [(2, 3), (3, 2), [6, 6]]
    (first.sum() + second.sum()).backward()
    assert tensor.grad.tolist() == [3.0] * 6


def test_a_compiled_function_takes_other_sizes_later(compiled):
    function = compiled(lambda x: static_reshape([x], [(None, 2)]))
    sizes = [function(torch.ones(n, 4))[1].tolist() for n in (1, 2, 5)]
    assert sizes == [[4], [8], [20]]
