import pytest
import torch

from monolith.embedding import FixedR8, Segment, TableConfig
from monolith.embedding.table import Table
from tests.suites.table import TableSuite
from tests.suites.table_machine import CONFIGS, check_random_verbs
from tests.suites.table_optimizer_runs import OptimizersEqualReference


class TestTable(TableSuite, OptimizersEqualReference):
    make = staticmethod(Table)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_random_verbs_equal_the_reference(config):
    check_random_verbs(Table, config)


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
