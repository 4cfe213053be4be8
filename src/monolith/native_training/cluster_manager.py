"""Find the processes of a job: the chief, and the servers that its workers train on."""

import logging
import posixpath
import time
from collections.abc import Callable, Mapping
from typing import Any

from monolith.checkpoint.storage import make_folder, read_file, write_file
from monolith.cluster.discovery import ServiceDiscovery
from monolith.cluster.servers import PS_JOB_NAME
from monolith.errors import DeadlineExceededError, InvalidArgumentError, NotFoundError
from monolith.observe.metrics import MetricsSink, NullSink
from monolith.util.waiting import check_timeout

_log = logging.getLogger(__name__)

WORKER_JOB_NAME = "worker"
"""Name of the chief and the workers in a discovery; the chief is number 0."""

PS_CLUSTER_DIR = "ps_cluster_dir"
"""Folder in a model's directory with the servers that a chief has chosen."""

_QUERY_SECONDS = 5.0
_METRICS = "monolith.containers"

Cluster = dict[str, list[str]]
"""Job -> addresses: one "chief", the "worker"s without the chief, and the "ps"."""


def _cluster_query_failure_handler() -> None:
    """Wait before the next query; tests replace it."""
    time.sleep(_QUERY_SECONDS)


def get_training_cluster(
    discovery: ServiceDiscovery,
    worker_addr: str,
    index: int,
    num_redundant_ps: int,
    num_required_ps: int,
    num_workers: int,
    model_dir: str,
    uuid: str,
    model_name: str | None = None,
    cluster_type: str = "stable",
    *,
    timeout_seconds: float = 7200.0,
    file_timeout_seconds: float = 1800.0,
    sink: MetricsSink | None = None,
    clock: Callable[[], float] = time.monotonic,
    prepare: Callable[[list[str]], None] | None = None,
) -> tuple[Cluster, dict[str, Any]]:
    """Return the cluster as a worker sees it, and the worker's place in it.

    Servers are those with the lowest numbers. With redundant servers, some of those that were
    started are not needed: the chief takes the first that are there, and writes them to
    `<model_dir>/ps_cluster_dir/<uuid, or "ps_info">`, where the workers read them, and where a
    chief that starts again finds them.

    Workers never talk to each other, so another worker has a placeholder, `0.0.0.0:<number>`.

    Args:
        discovery: Knows the servers as "ps", and chief and workers as "worker".
        worker_addr: Address of this worker.
        index: Number of this worker; 0 is the chief.
        num_redundant_ps: Number of servers that were started beyond the required ones.
        num_required_ps: Number of servers that the job needs, those for a benchmark included.
        num_workers: Number of workers, the chief included.
        model_dir: Directory of the job's checkpoints.
        uuid: Name of the job.
        model_name: Tag of the metrics.
        cluster_type: Tag of the metrics.
        timeout_seconds: Limit on each wait for addresses.
        file_timeout_seconds: Limit on the wait of a worker for the file of the chief.
        sink: Takes `num_left_ps` and `job_waiting` while servers are missing.
        clock: Seconds; only differences count.
        prepare: Called in the chief with the chosen ones among redundant servers, before the
            workers can read them.

    Returns:
        The cluster, and `{"type": "chief" or "worker", "index": task}`; worker 1 is task 0.

    Raises:
        DeadlineExceededError: Processes were not there in time.
        InvalidArgumentError: The worker's number is out of range.
    """
    if not 0 <= index < num_workers:
        raise InvalidArgumentError(
            f"[get_training_cluster] expected a worker in [0, {num_workers}), got number {index}"
        )
    tags = {"model_name": model_name or "", "cluster_type": cluster_type}
    waits = _Waits(discovery, check_timeout("[get_training_cluster]", timeout_seconds), clock)
    path = posixpath.join(model_dir, PS_CLUSTER_DIR, uuid or "ps_info")
    chief = worker_addr if index == 0 else waits.for_chief()
    servers: list[str] | None
    if not num_redundant_ps:
        servers = waits.for_servers(num_required_ps, sink or NullSink(), tags)
    elif index > 0:
        limit = check_timeout("[get_training_cluster]", file_timeout_seconds)
        servers = waits.for_file(path, num_required_ps, limit)
    else:
        servers = _read_servers(path, num_required_ps)
        if servers is None or not {*servers} <= {*discovery.query(PS_JOB_NAME).values()}:
            servers = waits.for_servers(num_required_ps, sink or NullSink(), tags)
        if prepare is not None:
            prepare(servers)
        make_folder(posixpath.dirname(path))
        write_file(path, ",".join(servers).encode())
    assert len(servers) == num_required_ps
    workers = [f"0.0.0.0:{number}" for number in range(1, num_workers)]
    if index > 0:
        workers[index - 1] = worker_addr
    task = {"type": "worker", "index": index - 1} if index > 0 else {"type": "chief", "index": 0}
    return {"chief": [chief], "worker": workers, "ps": servers}, task


class _Waits:
    """Asks for addresses until they are there, within a limit."""

    def __init__(
        self, discovery: ServiceDiscovery, seconds: float, clock: Callable[[], float]
    ) -> None:
        self._discovery, self._seconds, self._clock = discovery, seconds, clock

    def for_chief(self) -> str:
        end = self._clock() + self._seconds
        while not (address := self._discovery.query(WORKER_JOB_NAME).get(0, "")):
            _log.info("waiting for the address of the chief")
            self._pause(end, self._seconds, "the chief to register as worker 0", "none")
        return address

    def for_servers(self, number: int, sink: MetricsSink, tags: Mapping[str, str]) -> list[str]:
        end = self._clock() + self._seconds
        while len(found := self._discovery.query(PS_JOB_NAME)) < number:
            num_left = number - len(found)
            _log.info("Got %d ps, %d left!", len(found), num_left)
            _report(sink, num_left, tags)
            what = f"{number} servers to register"
            self._pause(end, self._seconds, what, f"{len(found)}: {sorted(found)}")
        _report(sink, 0, tags)
        return [found[key] for key in sorted(found)[:number]]

    def for_file(self, path: str, number: int, seconds: float) -> list[str]:
        end = self._clock() + seconds
        while (servers := _read_servers(path, number)) is None:
            _log.info("waiting for the chief to write %s", path)
            self._pause(end, seconds, f"the chief to write {number} servers to {path}", "none")
        return servers

    def _pause(self, end: float, seconds: float, what: str, got: str) -> None:
        if self._clock() >= end:
            raise DeadlineExceededError(
                f"[get_training_cluster] expected {what} within {seconds:g} s, got {got}; look at "
                "the logs of these processes"
            )
        _cluster_query_failure_handler()


def _report(sink: MetricsSink, num_left: int, tags: Mapping[str, str]) -> None:
    sink.gauge(f"{_METRICS}.num_left_ps", num_left, tags)
    sink.gauge(f"{_METRICS}.job_waiting", float(num_left > 0), tags)


def _read_servers(path: str, number: int) -> list[str] | None:
    """Return the servers that a file lists; None without it, or if it lists another number."""
    try:
        servers = read_file(path).decode().split(",")
    except NotFoundError:
        return None
    return servers if len(servers) == number else None
