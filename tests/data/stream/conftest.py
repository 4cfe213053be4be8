import pytest

from tests.data.stream.broker_process import running


@pytest.fixture(scope="session")
def broker():
    """A broker of Kafka in a process of its own, for topics of different names."""
    with running() as broker:
        yield broker
