import pytest
import torch

from monolith.native_training.static_reshape_op import StaticReshapeNBuilder, static_reshape

SHAPES = [(1, 5), (5, 8), (None, 2)]


@pytest.fixture
def inputs():
    kinds = [((5,), torch.int32), ((4, 10), torch.float32), ((2, 2, 3), torch.int64)]
    return [torch.ones(shape, dtype=dtype) for shape, dtype in kinds]


@pytest.mark.req("TS-SRSH-T1")
def test_static_reshape_n(inputs):
    outputs, sizes = static_reshape(inputs, SHAPES)
    assert sizes.tolist() == [5, 40, 12]
    assert [tuple(output.shape) for output in outputs] == [(1, 5), (5, 8), (6, 2)]
    assert [output.dtype for output in outputs] == [tensor.dtype for tensor in inputs]


@pytest.mark.req("NT-SRSH-T2")
def test_parallelism_does_not_change_results(inputs):
    outputs, sizes = static_reshape(inputs, SHAPES, enable_parallelism=True)
    others, other_sizes = static_reshape(inputs, SHAPES, enable_parallelism=False)
    assert torch.equal(sizes, other_sizes)
    assert all(torch.equal(a, b) for a, b in zip(outputs, others, strict=True))


@pytest.mark.req("TS-SRSH-T2")
def test_nested_reshape_n():
    nested = [
        {"key_0": [[1, 2, 3], [4, 5, 6]], "key_1": [[3, 3], [5, 5]]},
        {"key_1": [[0], [1], [2]]},
    ]
    builder = StaticReshapeNBuilder()
    positions = [
        {key: builder.add(torch.tensor(rows), (None,)) for key, rows in one.items()}
        for one in nested
    ]
    outputs, _ = builder.build()
    assert outputs[positions[0]["key_0"]].tolist() == [1, 2, 3, 4, 5, 6]
    assert outputs[positions[0]["key_1"]].tolist() == [3, 3, 5, 5]
    assert outputs[positions[1]["key_1"]].tolist() == [0, 1, 2]
