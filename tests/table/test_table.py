import pytest
import torch

from monolith.table import BagGradients, Bags, FixedR8, Segment, TableConfig
from monolith.table.native import Table
from tests.suites.table import RefusalSuite, TableSuite
from tests.suites.table_bad_bags import VERBS
from tests.suites.table_base import refuses
from tests.suites.table_cut_machine import CUT_CONFIGS, CutMachine
from tests.suites.table_machine import CONFIGS, check_random_verbs
from tests.suites.table_optimizer_runs import OptimizersEqualReference


class TestTable(TableSuite, RefusalSuite, OptimizersEqualReference):
    make = staticmethod(Table)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_random_verbs_equal_the_reference(config):
    check_random_verbs(Table, config)


@pytest.mark.parametrize("config", CUT_CONFIGS.values(), ids=CUT_CONFIGS)
def test_random_cuts_equal_the_reference(config):
    check_random_verbs(Table, config, machine=CutMachine)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_16_bit_rows_take_little_more_than_half_the_memory(precision):
    held = {}
    for name in ("fp32", precision):
        table = Table(TableConfig("user", Segment(64, precision=name)))
        table.lookup_or_insert(torch.arange(100_000))
        held[name] = table.memory_report()["total_bytes"]
    assert held[precision] <= 0.6 * held["fp32"]


def test_serving_rows_take_the_bytes_of_their_codes():
    for options, row_bytes in (({"precision": "fp16"}, 128), ({"view": FixedR8()}, 64)):
        table = Table(TableConfig("user", Segment(64, **options), kind="serving"))
        table.assign(torch.arange(50_000), torch.ones(50_000, 64))
        report = table.memory_report()
        assert report["row_bytes"] < 50_000 * (row_bytes + 16) * 1.1


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("place", "split"), [(0, 1), (1, 3), (1, -1), (2, 1 << 40)])
def test_row_splits_that_changed_since_they_were_checked(verb, place, split):
    table = Table(TableConfig("user", Segment(2)))
    bags = Bags(torch.tensor([1, 2]), torch.tensor([0, 1, 2]))
    bags.row_splits[place] = split
    said = verb.replace("apply_bag", "sum_bag")  # the first thing that an update does
    text = (
        f"[Table.{said}] expected row_splits from 0 to 2, ascending, got others than Bags checked "
        "(table 'user')"
    )
    with refuses(table, ValueError, text):
        VERBS[verb](table, bags, torch.zeros(2, 2))


def test_the_core_takes_winners_outside_their_bag_for_none():
    table = Table(TableConfig("user", Segment(1)))
    bags = Bags(torch.tensor([1, 2]), torch.tensor([0, 1, 2]), "max")
    before = table.lookup_or_insert(bags.keys)
    winners = torch.tensor([[1 << 30], [-5]], dtype=torch.int32)
    table.apply_bag_gradients([BagGradients.unchecked(bags, torch.ones(2, 1), winners)])
    assert torch.equal(table.lookup(bags.keys), before)
