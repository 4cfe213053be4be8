import re

import pytest
import torch

from monolith.data import Batch
from monolith.ops import Ragged, RaggedColumns
from monolith.train.inputs import TaskColumns, dense_matrix

ONE_EACH = Ragged.from_lists([[3], [4]])
COLUMNS = TaskColumns(["click"], ["hour"])


def batch(**features):
    return Batch({"user": ONE_EACH, **features})


def test_whole_numbers_become_labels_and_dense_columns():
    bound = COLUMNS.bind(batch(click=ONE_EACH, hour=ONE_EACH, item=ONE_EACH))
    assert list(bound.features) == ["user", "item"]
    assert bound.dense["hour"].tolist() == bound.label.tolist() == [3.0, 4.0]


def test_ids_in_one_memory_stay_there():
    ids = RaggedColumns.from_ragged({"click": ONE_EACH, "user": ONE_EACH, "hour": ONE_EACH})
    bound, again = COLUMNS.bind(Batch(ids)), COLUMNS.bind(Batch(ids))
    assert bound.features.ids is ids.ids
    assert list(bound.features) == ["user"]
    assert bound.features.names is again.features.names  # so that plans over them stay
    assert bound.label.tolist() == [3.0, 4.0]


def test_numbers_are_moved_to_the_part_that_the_task_names():
    samples = Batch({"user": ONE_EACH}, {"click": torch.ones(2)}, {"hour": torch.zeros(2)})
    bound = COLUMNS.bind(samples)
    assert (list(bound.dense), list(bound.labels)) == (["hour"], ["click"])


def test_a_batch_that_fits_is_left_as_it_is():
    samples = Batch({"user": ONE_EACH}, {"hour": torch.ones(2)}, {"click": torch.ones(2)})
    assert COLUMNS.bind(samples) is samples


def test_a_prediction_needs_no_label():
    assert COLUMNS.bind(batch(hour=ONE_EACH), with_labels=False).labels == {}


def test_a_prediction_has_the_labels_that_are_there():
    bound = COLUMNS.bind(batch(hour=ONE_EACH, click=ONE_EACH), with_labels=False)
    assert bound.label.tolist() == [3.0, 4.0]
    assert list(bound.features) == ["user"]


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        (
            batch(click=Ragged.from_lists([[1], [-(1 << 60)]])),
            "[Task.label] expected numbers up to 2**53 in column 'click', got "
            "-1152921504606846976; text is read as ids of 64 bits: convert it, or make a feature "
            "of it",
        ),
        (batch(), "[Task.label] expected column 'click' in the batch, got user"),
        (
            batch(click=ONE_EACH),
            "[Task.dense] expected column 'hour' in the batch, got user, click",
        ),
        (
            batch(click=Ragged.from_lists([[1, 2], []])),
            "[Task.label] expected one number for each sample in column 'click', got 2 in 2 "
            "samples",
        ),
    ],
)
def test_columns_that_are_missing_or_ragged_are_refused(samples, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        COLUMNS.bind(samples)


def test_dense_columns_stand_side_by_side():
    batch_of_two = Batch({}, {"a": torch.ones(2), "b": torch.zeros(2, 3)})
    assert dense_matrix(batch_of_two, ["a", "b"]).tolist() == [[1.0, 0.0, 0.0, 0.0]] * 2
    assert dense_matrix(batch_of_two, ["b"]).shape == (2, 3)
    assert dense_matrix(batch_of_two, []).shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.float16, torch.bfloat16])
def test_a_dense_column_of_another_type_is_read_as_float32(dtype):
    matrix = dense_matrix(Batch({}, {"a": torch.ones(2, dtype=dtype)}), ["a"])
    assert (matrix.dtype, matrix.tolist()) == (torch.float32, [[1.0], [1.0]])


def test_a_dense_column_must_be_there():
    text = r"^\[Task.dense\] expected column 'c' in the batch, got a$"
    with pytest.raises(ValueError, match=text):
        dense_matrix(Batch({}, {"a": torch.ones(2)}), ["c"])
