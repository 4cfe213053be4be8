import pytest

from monolith.embedding.table import Table
from tests.suites.table import TableSuite
from tests.suites.table_machine import CONFIGS, check_random_verbs
from tests.suites.table_optimizer_runs import OptimizersEqualReference


class TestTable(TableSuite, OptimizersEqualReference):
    make = staticmethod(Table)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_random_verbs_equal_the_reference(config):
    check_random_verbs(Table, config)
