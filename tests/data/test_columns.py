import pyarrow as pa
import pytest

from monolith.data import Columns, DenseColumn, IdColumn, Label

SCHEMA = pa.schema(
    {
        "user": pa.int32(),
        "items": pa.list_(pa.int64()),
        "city": pa.string(),
        "tags": pa.large_list(pa.string()),
        "price": pa.float64(),
        "is_new": pa.bool_(),
        "vector": pa.list_(pa.float32(), 3),
        "label": pa.int8(),
        "instance_weight": pa.float32(),
    }
)


def test_types_decide_what_is_inferred():
    columns = Columns.infer(SCHEMA)
    assert [each.name for each in columns.id_columns] == ["user", "items", "city", "tags"]
    assert [each.name for each in columns.dense_columns] == ["price", "is_new", "vector"]
    assert [each.name for each in columns.label_columns] == ["label"]
    assert columns.weight == "instance_weight"


def test_lists_of_a_fixed_size_have_their_width():
    assert Columns.infer(SCHEMA).dense_columns[2] == DenseColumn("vector", width=3)


def test_a_label_of_lists_has_its_width():
    schema = pa.schema({"user": pa.int64(), "y": pa.list_(pa.float32(), 2)})
    assert Columns.infer(schema, label="y").label_columns == (Label("y", width=2),)


def test_given_labels_weight_and_time_are_no_features():
    columns = Columns.infer(SCHEMA, label=["price", "is_new"], weight="label", time="user")
    assert columns.names() == [
        "items", "city", "tags", "vector", "instance_weight", "price", "is_new", "label", "user",
    ]  # fmt: skip


def test_dictionaries_are_what_they_hold():
    schema = pa.schema({"city": pa.dictionary(pa.int32(), pa.string())})
    assert Columns.infer(schema).id_columns == (IdColumn("city"),)


def test_a_missing_label_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"expected a column 'pric', got .*did you mean 'price'"):
        Columns.infer(SCHEMA, label="pric")


def test_a_missing_column_without_a_near_one_is_refused():
    with pytest.raises(ValueError, match=r"\[here\] expected a column 'zzz', got \['user'.*\]$"):
        Columns(["zzz"]).check("[here]", SCHEMA)


def test_other_types_are_refused():
    schema = pa.schema({"when": pa.date32()})
    with pytest.raises(TypeError, match=r"expected column 'when' of numbers.*got type date32"):
        Columns.infer(schema)


def test_lists_of_floats_need_a_width():
    schema = pa.schema({"v": pa.list_(pa.float32())})
    with pytest.raises(TypeError, match=r"expected the width of column 'v'"):
        Columns.infer(schema)


def test_one_name_twice_is_refused():
    with pytest.raises(ValueError, match=r"expected different names, got 'user' twice"):
        Columns(["user"], ["user"])


def test_a_maximum_length_below_one_is_refused():
    with pytest.raises(ValueError, match=r"max_length of at least 1, got 0 \(feature 'user'\)"):
        IdColumn("user", max_length=0)


@pytest.mark.parametrize("slot", [-1, 32768])
def test_a_slot_out_of_range_is_refused(slot):
    with pytest.raises(ValueError, match=rf"a slot from 0 to 32767, got {slot}"):
        IdColumn("user", slot=slot)


def test_a_width_below_one_is_refused():
    with pytest.raises(ValueError, match=r"a width of at least 1, got 0 \(column 'v'\)"):
        DenseColumn("v", width=0)
