import numpy as np
import pyarrow as pa
import pytest

from monolith.data.operations.sample_rows import (
    Rows,
    column_of,
    floats_of,
    positions_in,
    set_column,
)
from tests.data.operations.blocks import IDS, block

ACTIONS = block(actions=[[1, 2], [], [3]])


def test_a_column_that_is_missing_is_refused():
    with pytest.raises(ValueError, match=r"\[here\] expected a column 'x', got \['actions'\]"):
        column_of("[here]", ACTIONS, "x")


def test_floats_are_a_copy_of_samples_by_width():
    found = floats_of("[here]", block(label=[[1.0, 2.0], [3.0, 4.0]]), "label")
    assert found.tolist() == [[1, 2], [3, 4]]
    assert found.flags.writeable


def test_floats_of_ids_are_refused():
    with pytest.raises(TypeError, match=r"expected column 'actions' of float32, got type list"):
        floats_of("[here]", ACTIONS, "actions")


def test_ids_of_floats_are_refused():
    with pytest.raises(TypeError, match=r"\[here\] expected column 'x' of ids, got type float"):
        Rows.of("[here]", block(x=[1.0]), "x")


def test_a_slice_has_its_own_ids():
    sliced = Rows.of("[here]", ACTIONS.slice(1), "actions")
    assert (sliced.values.tolist(), sliced.lengths.tolist()) == ([3], [0, 1])
    assert sliced.to_arrow().to_pylist() == [[], [3]]


def test_any_asks_every_sample():
    actions = Rows.of("[here]", ACTIONS, "actions")
    assert actions.any(actions.values != 1).tolist() == [True, False, True]


def test_reduce_begins_with_a_number():
    actions = Rows.of("[here]", ACTIONS, "actions")
    assert actions.reduce(np.add, actions.values, -5).tolist() == [-2, -5, -2]
    single = Rows.of("[here]", block(x=[7, 8]), "x")
    assert single.reduce(np.minimum, single.values, 7).tolist() == [7, 7]


def test_best_is_the_earliest_of_the_list():
    actions = Rows.of("[here]", block(actions=[[1, 2], [], [3], [9]]), "actions")
    assert actions.best([3, 2, 1]).tolist() == [1, 3, 0, 3]
    assert actions.best_or_first([]).tolist() == [1, 0, 3, 9]
    assert actions.best_or_first([3, 2, 1]).tolist() == [2, 0, 3, 9]


def test_first_of_single_ids_are_the_ids():
    assert Rows.of("[here]", block(x=[7, 8]), "x").first().tolist() == [7, 8]


@pytest.mark.parametrize("far", [8, 1 << 40, -(1 << 63)])
def test_positions_are_those_in_the_list(far):
    values = np.array([5, 7, 6, -1, 4, far, (1 << 63) - 1])
    assert positions_in(values, [7, far, 5, 7]).tolist() == [2, 0, -1, -1, -1, 1, -1]
    assert positions_in(values, []).tolist() == [-1] * 7


def test_set_column_replaces_in_place_or_appends():
    changed = set_column(block(a=[1], b=[2]), "a", pa.array([5]))
    assert changed.schema.names == ["a", "b"]
    wide = set_column(changed, "c", np.ones((1, 2), np.float32))
    assert wide.column("c").type == pa.list_(pa.float32(), 2)
    assert set_column(wide, "d", pa.array([[1]], IDS)).schema.names == ["a", "b", "c", "d"]
