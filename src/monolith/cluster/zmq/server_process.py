"""`ServerProcess`: a parameter server as a process runs it, from its first message to its drain."""

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monolith.cluster.discovery import ServiceDiscovery
from monolith.cluster.job.dense_shard import DenseShard
from monolith.cluster.server_host import ServerHost
from monolith.cluster.servers import PS_JOB_NAME
from monolith.cluster.zmq.addresses import is_wildcard
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.cluster.zmq.server_loop import ServerLoop
from monolith.errors import InvalidArgumentError, MonolithError, OpError
from monolith.observe import PrometheusSink

if TYPE_CHECKING:
    from typing_extensions import Self

LOOPBACK = "127.0.0.1"

_LINGER_TURN_SECONDS = 0.05
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerOptions:
    """How to run a server.

    Args:
        index: Number of the server.
        num_servers: Number of servers of the job.
        address: Address to listen at; port 0 takes a free port.
        keys: CURVE keys of the job; None talks in the clear.
        is_insecure: Whether other machines may connect without keys.
        discovery: Gets the address of the server, and is closed with it; None tells nobody.
        num_threads: Threads for calls that are not small.
        metrics_port: Port of the pages /metrics and /health, 0 for a free one; None opens none.
        metrics_host: Address of the pages; others can connect if it is not a loopback address.
    """

    index: int
    num_servers: int
    address: str = "tcp://127.0.0.1:0"
    keys: CurveKeys | None = None
    is_insecure: bool = False
    discovery: ServiceDiscovery | None = None
    num_threads: int = 2
    metrics_port: int | None = None
    metrics_host: str = LOOPBACK


class ServerProcess:
    """A server that answers, with its place in the discovery and its pages. Close it.

    Args:
        options: How to run.
        dense: Dense parameters of the server; None without a task.

    Attributes:
        host: The tables.
        loop: The socket.
        metrics: The pages; None without a port.

    Raises:
        FailedPreconditionError: Another process has the index in the discovery.
        UnavailableError: The address is in use, or the discovery does not answer.
        ValueError: The port of the pages is in use, or an option is wrong.
    """

    def __init__(self, options: ServerOptions, dense: DenseShard | None = None) -> None:
        self._options = options
        self._stop = threading.Event()
        self._is_draining = False
        self.metrics: PrometheusSink | None = None
        self._discovery = options.discovery
        self._registered: str | None = None
        self.host = ServerHost(options.index, options.num_servers, dense=dense)
        try:
            if self._discovery is not None:
                self._discovery.hold(PS_JOB_NAME, options.index)
            if options.metrics_port is not None:
                self.metrics = PrometheusSink(
                    options.metrics_port, options.metrics_host, health=self.health
                )
            self.loop = ServerLoop(
                self.host,
                options.address,
                keys=options.keys,
                is_insecure=options.is_insecure,
                num_threads=options.num_threads,
            )
        except BaseException:
            self._end()
            raise
        self.loop.start()
        try:
            self._register()
        except BaseException:
            self.close()
            raise

    def _register(self) -> None:
        discovery, address = self._discovery, self.loop.address
        if discovery is None:
            return
        if discovery.place is None and is_wildcard(address):
            raise InvalidArgumentError(
                f"[monolith ps] expected an address that other processes can connect to, got "
                f"{address}; --bind an address of this machine where there is a discovery"
            )
        address = address.removeprefix("tcp://")
        discovery.register(PS_JOB_NAME, self._options.index, address)
        self._registered = address

    def health(self) -> dict[str, Any]:
        """Return what the page /health shows; `is_ready` is false while the server ends."""
        is_ready = self.loop.is_running and not self._is_draining
        return {"is_ready": is_ready, **self.host.status(), "messages": dict(self.loop.counts)}

    def measure(self) -> None:
        """Write the numbers of the server to the page /metrics."""
        if self.metrics is None:
            return
        status = self.host.status()
        for name, table in status["tables"].items():
            for fact in ("rows", "update_calls", "bytes"):
                self.metrics.gauge(f"server_{fact}", table[fact], {"table": name})
        self.metrics.gauge("server_clients", self.loop.num_sessions, {})
        for name, number in self.loop.counts.items():
            self.metrics.gauge("server_messages", number, {"kind": name})

    def request_stop(self) -> None:
        """Let `run` end. Safe in a handler of signals."""
        self._stop.set()

    def run(self, every_seconds: float = 1.0, *, linger_seconds: float = 0.0) -> None:
        """Measure at intervals until `request_stop`, or the end of the job.

        Args:
            every_seconds: Seconds between two measurements.
            linger_seconds: Maximum seconds after `request_stop` in which clients may go on, such as
                a chief that saves because it got the same signal.

        Raises:
            OpError: The thread of the socket ended by an error.
        """
        while not self._stop.wait(every_seconds) and not self.host.is_job_ended:
            self.measure()
            if not self.loop.is_running:
                raise OpError(
                    f"[monolith ps] expected the thread of {self.host.label} to serve, got its "
                    "end by an error, which is in the log"
                )
        end, pause = time.monotonic() + linger_seconds, threading.Event()
        while self._has_clients and time.monotonic() < end:
            pause.wait(_LINGER_TURN_SECONDS)

    @property
    def _has_clients(self) -> bool:
        is_over = self.host.is_job_ended or not self.loop.is_running
        return not is_over and self.loop.num_sessions > 0

    def drain(self, timeout_seconds: float) -> bool:
        """Refuse new calls, and finish those that run; whether all ended in time."""
        self._is_draining = True
        return self.loop.drain(timeout_seconds)

    def close(self) -> None:
        """End the server: its tables are gone."""
        self.loop.close()
        self._end()

    def _end(self) -> None:
        if self.metrics is not None:
            self.metrics.close()
        if self._discovery is not None:
            self._deregister(self._discovery)
        self.host.close()

    def _deregister(self, discovery: ServiceDiscovery) -> None:
        """Take the address back; a discovery that is away forgets it by itself."""
        address, self._registered = self._registered, None
        try:
            if address is not None:
                discovery.deregister(PS_JOB_NAME, self._options.index, address)
        except (OSError, MonolithError) as error:
            _log.warning("the address of the server stays in the discovery: %s", error)
        discovery.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
