"""Tables in all ranks as an engine: the facts of all engines, with one rank and with two."""

import contextlib
import subprocess
import sys

import pytest
import torch.distributed as dist

from monolith.cluster.ranks.rank_group import RankGroup, group_of_file
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.cluster.ranks.ranks_engine import ranks_engine
from tests.cluster.ranks.followers import OPTIONS, LeadingEngine, open_tables
from tests.suites.engine import EngineSuite


def make_alone(configs, features, clock):
    group = RankGroup(dist.HashStore(), 0, 1)
    ranks = RankTables(group)
    return ranks_engine(ranks)(open_tables(ranks, configs, clock), features)


class TestOneRank(EngineSuite):
    make = staticmethod(make_alone)


@contextlib.contextmanager
def two_ranks_by(strategy, folder):
    """The tables of rank 0 of two; rank 1 follows."""
    path = str(folder / "port")
    command = [sys.executable, "-m", "tests.cluster.ranks.followers", path, strategy]
    with subprocess.Popen(command) as process:
        with (
            group_of_file(path, 0, 2, OPTIONS) as group,
            RankTables(group, partition_strategy=strategy) as ranks,
        ):
            yield ranks
            group.control.share(("end",))
            group.control.gather(None)
        assert process.wait(30) == 0


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Rank 0 of two that have ranges of hashes."""
    with two_ranks_by("div", tmp_path_factory.mktemp("ranks")) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def two_ranks_by_remainder(tmp_path_factory):
    """Rank 0 of two that have the remainders of keys."""
    with two_ranks_by("mod", tmp_path_factory.mktemp("ranks")) as ranks:
        yield ranks


@pytest.mark.dist
class TestTwoRanks(EngineSuite):
    """Rank 1 is a process that has a part of the rows and no batches."""

    @pytest.fixture(autouse=True)
    def _take_ranks(self, two_ranks):
        self.ranks = two_ranks

    def make(self, configs, features, clock):
        for opened in self.ranks.servers._tables.values():
            if not opened.table._is_closed:
                opened.table.close()
        return LeadingEngine(open_tables(self.ranks, configs, clock), features, self.ranks)


@pytest.mark.slow
class TestTwoRanksByRemainder(TestTwoRanks):
    """The same with the partition strategy of the reference system."""

    @pytest.fixture(autouse=True)
    def _take_ranks(self, two_ranks_by_remainder):
        self.ranks = two_ranks_by_remainder
