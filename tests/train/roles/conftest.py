import pytest

from tests.train.roles.job_tasks import write_samples
from tests.train.roles.jobs import Nursery


@pytest.fixture(scope="package")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="package")
def samples(tmp_path_factory):
    """(number of samples) -> file with them, the same in all tests."""
    folder = tmp_path_factory.mktemp("samples")

    def samples(number, seed=0):
        path = folder / f"{number}-{seed}.parquet"
        return str(path) if path.exists() else write_samples(path, number, seed)

    return samples
