"""`ZKServiceDiscovery`: addresses as nodes of ZooKeeper, which end with their process."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from monolith.cluster.discovery.kazoo_client import MonolithKazooClient
from monolith.cluster.discovery.service_discovery import ServiceDiscovery
from monolith.cluster.discovery.zookeeper_session import SessionOptions, ZooKeeperSession
from monolith.errors import InvalidArgumentError

ZK_ROOT = "/monolith"
"""Node that has a node for each job."""

ZK_REGISTRATION_PERIOD_SECONDS = 30 * 60.0
"""Seconds between two writes of an address that is registered."""


class ZKServiceDiscovery(ServiceDiscovery):
    """Discovery by nodes of ZooKeeper; needs the extra `zk`.

    The address of server 3 is the content of `/monolith/<job_name>/ps.3`. The node is ephemeral:
    it goes when its process closes the discovery, and some seconds after its process was killed
    (`session_seconds`). Watches keep the addresses of all processes in memory, so that `query`
    talks to nobody. While ZooKeeper is away, `query` returns the last addresses; when it is back,
    lost nodes are made again.

    Args:
        job_name: Name of the job.
        zk_server: Servers of ZooKeeper as `host:port,host:port`.
        max_tries: Number of tries of `register` and `deregister`.
        delay: Seconds between two tries.
        session_seconds: Seconds without a sign of life after which ZooKeeper ends the session.
        start_seconds: Seconds to wait for ZooKeeper at the start.
        period_seconds: Returns the seconds between two writes of a registered address.
        make_client: Returns a client of kazoo.

    Raises:
        ValueError: No server is given.
        FailedPreconditionError: kazoo is not installed.
    """

    _session: ZooKeeperSession | None = None  # for a constructor that fails

    def __init__(
        self,
        job_name: str,
        zk_server: str | None = None,
        max_tries: int = 3,
        delay: float = 5,
        *,
        session_seconds: float = 10.0,
        start_seconds: float = 10.0,
        period_seconds: Callable[[], float] = lambda: ZK_REGISTRATION_PERIOD_SECONDS,
        make_client: Callable[..., Any] = MonolithKazooClient,
    ) -> None:
        if not zk_server:
            raise ValueError(
                "[ZKServiceDiscovery] expected the servers of ZooKeeper as host:port,host:port, "
                "got none"
            )
        if not job_name or "/" in job_name or job_name in (".", ".."):
            raise InvalidArgumentError(
                f"[ZKServiceDiscovery] expected the name of a job without '/', got {job_name!r}"
            )
        options = SessionOptions(
            f"{ZK_ROOT}/{job_name}",
            zk_server,
            max_tries,
            delay,
            session_seconds,
            start_seconds,
            period_seconds,
        )
        self._session = ZooKeeperSession(options, make_client)

    @property
    def client(self) -> Any:
        """The client of kazoo."""
        return self._open.client

    @property
    def _open(self) -> ZooKeeperSession:
        assert self._session is not None
        return self._session

    def register(self, name: str, index: int, addr: str) -> None:
        """Write the address of a process, in place of an older one, and keep it written."""
        self._open.register(name, index, addr)

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Remove the address of a process."""
        self._open.deregister(name, index)

    def query(self, name: str) -> dict[int, str]:
        """Return the addresses of a name, as the watches have seen them last."""
        return self._open.addresses(name)

    def wait_change(
        self, name: str, known: Mapping[int, str], timeout_seconds: float
    ) -> dict[int, str]:
        """Return the addresses of a name as soon as they differ from those that are known."""
        return self._open.wait_change(name, known, time.monotonic() + timeout_seconds)

    def hold(self, name: str, index: int) -> None:
        """Take an index for this process, until `close` or its end, however it ends.

        If the session of another process has the index, the call waits until that session can have
        ended: 1.5 times `session_seconds`.

        Raises:
            FailedPreconditionError: A living process has the index; the text names the process.
        """
        self._open.hold(name, index)

    def close(self) -> None:
        """Remove what this process registered, and end the session. Closing twice is fine."""
        if self._session is not None:
            self._session.close()

    def __del__(self) -> None:
        self.close()
