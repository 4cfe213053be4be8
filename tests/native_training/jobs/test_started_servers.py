"""The places of servers of which more are started than a job needs."""

import pytest

from monolith.cluster.discovery import HostServiceDiscovery
from monolith.errors import UnavailableError
from monolith.native_training.jobs.started_servers import NodeAliveCheckerError, StartedServers
from monolith.native_training.jobs.training_config import DistributedCpuTrainingConfig


@pytest.fixture
def servers(tmp_path):
    def of(**options):
        config = DistributedCpuTrainingConfig(
            num_ps=2, model_dir=str(tmp_path), uuid="u", operation_timeout_in_ms=500, **options
        )
        return StartedServers(config, HostServiceDiscovery(tmp_path / "discovery"))

    return of


def test_servers_without_others_have_the_places_of_their_numbers(servers):
    assert servers().places() == [0, 1]


@pytest.mark.parametrize("text", ["1", "0,0", "0,4", "a,b"])
def test_a_file_that_names_no_servers_of_the_job_is_as_none(servers, tmp_path, text):
    started = servers(num_extra_ps=1, num_redundant_ps=1)
    assert started.places() is None
    (tmp_path / "ps_cluster_dir").mkdir()
    path = tmp_path / "ps_cluster_dir" / "u.places"
    path.write_text("3,1")
    assert started.places() == [3, 1]
    path.write_text(text)
    assert started.places() is None


def test_an_address_that_no_server_has_is_unreachable(servers):
    with pytest.raises(NodeAliveCheckerError, match=r"^127.0.0.1:9,b:2 is unreachable$"):
        servers().numbers_of(["127.0.0.1:9", "b:2"])


def test_a_server_that_does_not_answer_is_unreachable(servers, tmp_path):
    for index in range(2):
        HostServiceDiscovery(tmp_path / "discovery").register("ps", index, f"127.0.0.1:{9 + index}")
    with pytest.raises(UnavailableError, match=r"^127.0.0.1:9,127.0.0.1:10 is unreachable$"):
        servers().connect([0, 1])
    assert servers().registered() == [0, 1]
