import pytest

from monolith.embedding.sharded_table import ShardedTable
from tests.suites.table import TableSuite


def sharded(num_shards):
    return staticmethod(lambda config, **options: ShardedTable.local(config, num_shards, **options))


class TestOneShard(TableSuite):
    make = sharded(1)


class TestTwoShards(TableSuite):
    make = sharded(2)


class TestThreeShards(TableSuite):
    make = sharded(3)


class TestSevenShards(TableSuite):
    make = sharded(7)
