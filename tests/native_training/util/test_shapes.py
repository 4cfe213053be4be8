from types import SimpleNamespace

import numpy as np
import pytest
import torch

from monolith.native_training.util.shapes import get_ndim, int_shape


def described(*shape):
    return SimpleNamespace(shape=shape)


@pytest.mark.parametrize("make", [torch.zeros, lambda *s: torch.zeros(*s, device="meta")])
def test_a_tensor_has_all_its_sizes(make):
    assert (get_ndim(make(2, 3)), int_shape(make(2, 3))) == (2, (2, 3))


def test_a_scalar_has_no_dimensions():
    assert (get_ndim(torch.tensor(1.0)), int_shape(torch.tensor(1.0))) == (0, ())


def test_a_ragged_size_is_unknown():
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    assert (get_ndim(ragged), int_shape(ragged)) == (3, (2, -1, 3))


def test_a_size_that_is_a_symbol_of_a_graph_is_unknown():
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        torch.nn.Linear(3, 4), (torch.ones(2, 3),), dynamic_shapes={"input": {0: batch}}
    )
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    assert int_shape(output.args[0][0].meta["val"]) == (-1, 4)


def test_a_description_may_leave_sizes_open():
    assert int_shape(described(None, 3, np.int64(4))) == (-1, 3, 4)
    assert get_ndim(described(None, 3)) == 2


def test_a_size_that_is_no_number_makes_no_shape():
    assert int_shape(described(2, "three")) is None


def test_an_unknown_number_of_dimensions():
    unknown = SimpleNamespace(shape=None)
    assert (get_ndim(unknown), int_shape(unknown)) == (None, None)
