import dataclasses

import pytest
import torch

from monolith.errors import InvalidArgumentError
from monolith.table import MinCount, Segment, SlidingFilter, Table, TableConfig
from monolith.table.content import copy_of_content, fill_table, restore_content, table_content
from monolith.table.optimizers import Adam
from monolith.table.reference import ReferenceTable
from tests.suites.table_base import NOW, assert_same_rows

SEGMENTS = [Segment(3, Adam(0.1), precision="bf16"), Segment(1)]
KEYS = torch.tensor([1, -5, 1 << 60])


def trained(config, make=Table):
    table = make(config, clock=lambda: NOW)
    for _ in range(3):
        table.apply_gradients(KEYS, torch.ones(3, 4))
    return table


@pytest.mark.parametrize("make", [Table, ReferenceTable])
@pytest.mark.parametrize("admission", [None, MinCount(2), SlidingFilter(2, capacity=2_000_000)])
def test_a_filled_table_goes_on_like_the_first(make, admission):
    config = TableConfig("user", SEGMENTS, admission=admission)
    table = trained(config, make)
    twin = fill_table(copy_of_content(table))
    assert type(twin) is make
    for one in (table, twin):
        one.apply_gradients(torch.tensor([1, 9]), torch.ones(2, 4))
    assert_same_rows(table, twin)
    assert twin.num_update_calls == table.num_update_calls == 4
    assert twin.latest_time == NOW


def test_an_empty_table_has_a_content_with_all_columns():
    config = TableConfig("user", SEGMENTS)
    content = table_content(Table(config))
    assert content["columns"]["weight/0"].shape == (0, 3)
    assert content["columns"]["weight/0"].dtype == torch.bfloat16
    restore_content(table := trained(config), content)
    assert len(table) == 0


def test_a_serving_table_can_be_copied():
    config = dataclasses.replace(TableConfig("user", SEGMENTS), kind="serving")
    table = Table(config)
    table.assign(KEYS, torch.ones(3, 4))
    assert_same_rows(fill_table(copy_of_content(table)), table)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("config", None, "expected config of type Mapping, got NoneType"),
        ("keys", [1], "expected keys of type Tensor, got list"),
        ("num_update_calls", "x", "expected num_update_calls of type int, got str"),
        ("num_update_calls", -1, r"expected num_update_calls in \[0, \d+\], got -1"),
        ("latest_time", 1 << 40, r"expected latest_time in \[0, 4294967295\], got 1099511627776"),
    ],
)
def test_a_damaged_field_is_refused_by_name(name, value, text):
    table = trained(TableConfig("user", SEGMENTS))
    content = {**table_content(table), name: value}
    with pytest.raises(InvalidArgumentError, match=text):
        restore_content(table, content)
    assert len(table) == 3


def test_a_missing_field_is_refused_by_name():
    table = trained(TableConfig("user", SEGMENTS))
    content = table_content(table)
    del content["columns"]
    with pytest.raises(InvalidArgumentError, match="expected columns of type Mapping, got none"):
        restore_content(table, content)


@pytest.mark.parametrize("name", ["keys", "times", "candidates"])
def test_a_damaged_content_leaves_the_table_alone(name):
    table = trained(TableConfig("user", SEGMENTS))
    content = {**table_content(table), name: torch.zeros(7)}
    with pytest.raises((TypeError, ValueError)):
        restore_content(table, content)
    assert len(table) == 3
