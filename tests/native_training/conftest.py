import pytest

from monolith.native_training import hvd_lib
from tests.native_training.rank_processes import rank_nursery


@pytest.fixture(scope="session")
def rank_forks():
    """The process that forks ranks, for all tests."""
    with rank_nursery() as nursery:
        yield nursery


@pytest.fixture
def alone():
    """This process as the only rank, which can leave and join again."""
    hvd_lib.init()
    yield hvd_lib
    hvd_lib.shutdown()
