import pytest
import torch

from monolith import data
from monolith.cluster.data_service.batch_codec import batch_from_value, batch_to_value
from monolith.cluster.wire.value_codec import bytes_of, decode, encode
from monolith.data import Batch
from monolith.errors import InvalidArgumentError
from monolith.ops import Ragged, RaggedColumns

TABLE = {"user": [7, 8, 9], "history": [[1, 2], [], [3]], "price": [0.5, 1.0, 2.0]}


def travelled(batch):
    """A batch that was written to the wire and read."""
    body, columns = encode(batch_to_value(batch))
    return batch_from_value(decode(body, [bytes_of(column) for column in columns]))


def assert_equal(ours, theirs):
    for part in ("features", "dense", "labels"):
        assert list(getattr(ours, part)) == list(getattr(theirs, part))
    for name, ids in theirs.features.items():
        assert ours.features[name].to_lists() == ids.to_lists()
    for name, column in (*theirs.dense.items(), *theirs.labels.items()):
        assert torch.equal({**ours.dense, **ours.labels}[name], column)
    for name in ("weight", "time"):
        ours_column, column = getattr(ours, name), getattr(theirs, name)
        assert (ours_column is None) == (column is None)
        assert column is None or torch.equal(ours_column, column)


def test_a_batch_of_a_pipeline_travels():
    (batch,) = data.arrow_table(TABLE).batch(3)
    got = travelled(batch)
    assert_equal(got, batch)
    assert isinstance(got.features, RaggedColumns)


def test_a_batch_with_every_part_travels():
    batch = Batch(
        {
            "user": Ragged.from_lists([[7], []]),
            "score": Ragged.from_lists([[0.5], [1.0, 2.0]], dtype=torch.float32),
        },
        {"wide": torch.ones(2, 3, dtype=torch.float64)},
        {"a": torch.ones(2), "b": torch.zeros(2)},
        torch.tensor([1.0, 2.0]),
        torch.tensor([5, 6]),
    )
    assert_equal(travelled(batch), batch)


def test_a_batch_without_features_travels():
    assert_equal(travelled(batch := Batch(dense={"x": torch.ones(4)})), batch)


def test_columns_that_were_taken_out_do_not_travel():
    (batch,) = data.arrow_table({**TABLE, "item": [1, 2, 3]}).batch(3)
    kept = Batch(batch.features.without({"user"}), batch.dense)
    assert_equal(travelled(kept), kept)


def test_a_column_that_was_left_out_is_still_refused():
    (batch,) = data.arrow_table(TABLE).select("user").batch(3)
    got = travelled(batch)
    for columns in (got.features, got.dense):
        with pytest.raises(InvalidArgumentError, match="expected a column that is read"):
            columns["history"]


def value(**change):
    (batch,) = data.arrow_table(TABLE).batch(3)
    return {**batch_to_value(batch), **change}


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        value(ids=None),
        value(names=["user"]),
        value(names=[["user"], "history"]),
        value(row_splits=torch.zeros(2, 4, dtype=torch.int64)),
        value(dense={"price": 1.0}),
        value(dense=None),
        value(dense={"price": torch.ones(2)}),
        value(weight="x"),
        value(left_out=5),
        value(names=[], ragged={"user": (torch.ones(1), torch.ones(1))}),
        value(names=[], ragged={"user": 5}),
    ],
)
def test_another_value_is_no_batch(wrong):
    with pytest.raises(InvalidArgumentError, match="expected a batch of a data worker"):
        batch_from_value(wrong)
