import numpy as np
import pyarrow as pa
import pytest

from monolith import data
from monolith.data import Columns
from tests.data.samples import table


def doubled(block):
    prices = block.column("price").to_numpy()
    return block.append_column("twice", pa.array(prices * np.float32(2)))


def test_new_columns_of_a_function_are_named():
    source = data.arrow_table(table(4)).map(doubled, adds=Columns(dense=["twice"]))
    assert next(iter(source.batch(4))).dense["twice"].tolist() == [0, 0.5, 1, 1.5]


def test_columns_that_are_there_are_not_added_again():
    columns = Columns(["user"], ["price"], ["label"], "w", "t")
    assert columns.plus(Columns(["user"], ["twice"], ["label"], "w")).names() == [
        "user", "price", "twice", "label", "w", "t",
    ]  # fmt: skip
    assert columns.plus(None) is columns


def test_another_time_is_refused():
    with pytest.raises(ValueError, match=r"expected the time in column 't', as before, got 's'"):
        Columns(["user"], time="t").plus(Columns(time="s"))


def test_columns_are_left_out():
    source = data.arrow_table(table(4)).drop("items", "price")
    batch = next(iter(source.batch(4)))
    assert (sorted(batch.features), sorted(batch.dense)) == (["user"], [])
    assert Columns(["user"], weight="w", time="t").without(["w", "t"]).names() == ["user"]


def test_a_column_that_is_not_there_is_not_left_out():
    with pytest.raises(ValueError, match=r"expected columns of \['user', .*, got 'x'"):
        data.arrow_table(table(4)).drop("user", "x")


def test_left_out_columns_are_a_part_of_the_state():
    source = data.arrow_table(table(4))
    assert source.drop("items").describe() != source.drop("price").describe()
