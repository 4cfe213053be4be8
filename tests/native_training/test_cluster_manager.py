"""A worker finds the chief and the servers of its job, over files of a folder."""

import pytest

from monolith.cluster.discovery import HostServiceDiscovery
from monolith.errors import DeadlineExceededError, InvalidArgumentError
from monolith.native_training import cluster_manager
from monolith.native_training.cluster_manager import get_training_cluster
from monolith.observe.metrics import MemorySink


@pytest.fixture
def discovery(tmp_path):
    return HostServiceDiscovery(tmp_path / "discovery")


@pytest.fixture
def pauses(monkeypatch):
    """What happens at the pauses between queries, one after the other; then they are errors."""
    events = []
    monkeypatch.setattr(cluster_manager, "_cluster_query_failure_handler", lambda: events.pop(0)())
    return events


@pytest.fixture
def cluster_of(discovery, tmp_path):
    """The cluster of a worker of a job with two servers and three workers."""

    def find(index=0, num_redundant=0, required=2, uuid="job", **options):
        return get_training_cluster(
            *(discovery, f"w:{index}", index, num_redundant, required, 3),
            *(str(tmp_path / "model"), uuid),
            **options,
        )

    return find


def register(discovery, *numbers):
    for number in numbers:
        discovery.register("ps", number, f"s:{number}")


def test_the_chief_sees_itself_the_servers_and_placeholders_of_workers(discovery, cluster_of):
    register(discovery, 0, 1)
    assert cluster_of() == (
        {"chief": ["w:0"], "worker": ["0.0.0.0:1", "0.0.0.0:2"], "ps": ["s:0", "s:1"]},
        {"type": "chief", "index": 0},
    )


def test_a_worker_sees_the_chief_and_itself(discovery, cluster_of):
    register(discovery, 0, 1)
    discovery.register("worker", 0, "w:0")
    assert cluster_of(2) == (
        {"chief": ["w:0"], "worker": ["0.0.0.0:1", "w:2"], "ps": ["s:0", "s:1"]},
        {"type": "worker", "index": 1},
    )


def test_servers_are_those_with_the_lowest_numbers_in_their_order(discovery, cluster_of):
    register(discovery, 10, 3, 2)
    assert cluster_of()[0]["ps"] == ["s:2", "s:3"]


def test_the_wait_for_servers_is_logged_and_measured(discovery, cluster_of, pauses, caplog):
    caplog.set_level("INFO", "monolith")
    sink, tags = MemorySink(), {"model_name": "m", "cluster_type": "tide"}
    left = []
    name = "monolith.containers.num_left_ps"

    def event(*numbers):
        return lambda: (left.append(sink.value(name, tags)), register(discovery, *numbers))

    pauses += [event(1), event(0)]
    cluster_of(sink=sink, model_name="m", cluster_type="tide")
    assert [r.getMessage() for r in caplog.records] == ["Got 0 ps, 2 left!", "Got 1 ps, 1 left!"]
    assert [*left, sink.value(name, tags)] == [2, 1, 0]
    assert sink.value("monolith.containers.job_waiting", tags) == 0


def test_a_worker_waits_for_the_chief(discovery, cluster_of, pauses):
    register(discovery, 0, 1)
    pauses.append(lambda: discovery.register("worker", 0, "w:0"))
    assert cluster_of(1)[0]["chief"] == ["w:0"]
    assert pauses == []


class Clock:
    """Seconds that go on by one with each look."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


def test_a_wait_for_servers_has_a_limit(discovery, cluster_of, pauses):
    register(discovery, 1)
    pauses += [lambda: None] * 9
    text = r"expected 2 servers to register within 3 s, got 1: \[1\]; look at the logs"
    with pytest.raises(DeadlineExceededError, match=text):
        cluster_of(timeout_seconds=3, clock=Clock())


def test_a_wait_for_the_chief_has_a_limit(cluster_of, pauses):
    pauses += [lambda: None] * 9
    text = "expected the chief to register as worker 0 within 3 s, got none"
    with pytest.raises(DeadlineExceededError, match=text):
        cluster_of(1, timeout_seconds=3, clock=Clock())


def test_a_limit_is_checked(cluster_of):
    with pytest.raises(ValueError, match="expected a limit of at least 0 seconds, got -1"):
        cluster_of(timeout_seconds=-1)


def test_a_number_of_a_worker_is_checked(cluster_of):
    with pytest.raises(InvalidArgumentError, match=r"a worker in \[0, 3\), got number 3"):
        cluster_of(3)


def test_between_two_queries_are_five_seconds(monkeypatch):
    waits = []
    monkeypatch.setattr(cluster_manager.time, "sleep", waits.append)
    cluster_manager._cluster_query_failure_handler()
    assert waits == [5.0]


# Redundant servers


def test_the_chief_writes_the_servers_that_it_has_chosen(discovery, cluster_of, tmp_path):
    register(discovery, 0, 2)
    cluster_of(num_redundant=1)
    folder = tmp_path / "model" / "ps_cluster_dir"
    assert [path.name for path in folder.iterdir()] == ["job"]
    assert (folder / "job").read_text() == "s:0,s:2"


def test_a_job_without_a_name_has_a_file_too(discovery, cluster_of, tmp_path):
    register(discovery, 0, 1)
    cluster_of(num_redundant=1, uuid="")
    assert (tmp_path / "model" / "ps_cluster_dir" / "ps_info").read_text() == "s:0,s:1"


def test_a_chief_that_starts_again_keeps_its_servers(discovery, cluster_of):
    register(discovery, 1, 2)
    first = cluster_of(num_redundant=1)
    register(discovery, 0)
    assert cluster_of(num_redundant=1) == first
    assert first[0]["ps"] == ["s:1", "s:2"]


def test_a_file_of_another_number_of_servers_is_replaced(discovery, cluster_of):
    register(discovery, 0, 1, 2)
    cluster_of(num_redundant=1)
    assert cluster_of(num_redundant=1, required=3)[0]["ps"] == ["s:0", "s:1", "s:2"]


def test_a_worker_takes_the_servers_of_the_chief(discovery, cluster_of, pauses):
    register(discovery, 1, 2)
    discovery.register("worker", 0, "w:0")
    pauses.append(lambda: cluster_of(num_redundant=1))
    pauses.append(lambda: pytest.fail("the file is there"))
    assert cluster_of(1, num_redundant=1)[0]["ps"] == ["s:1", "s:2"]


def test_a_wait_for_the_file_of_the_chief_has_a_limit(discovery, cluster_of, pauses):
    discovery.register("worker", 0, "w:0")
    pauses += [lambda: None] * 9
    text = r"expected the chief to write 2 servers to .*/ps_cluster_dir/job within 4 s, got none"
    with pytest.raises(DeadlineExceededError, match=text):
        cluster_of(1, num_redundant=1, file_timeout_seconds=4, clock=Clock())
