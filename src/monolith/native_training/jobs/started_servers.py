"""`StartedServers`: the servers that were started for a job, and their places in it."""

import posixpath

from monolith.checkpoint.storage import make_folder, read_file, write_file
from monolith.cluster.discovery import ServiceDiscovery
from monolith.cluster.remote_servers import RemoteServers
from monolith.cluster.servers import PS_JOB_NAME
from monolith.cluster.zmq.connect import OneServer, find_servers
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.errors import NotFoundError, UnavailableError
from monolith.native_training.cluster_manager import PS_CLUSTER_DIR
from monolith.native_training.jobs.training_config import DistributedCpuTrainingConfig
from monolith.table.arguments import WAIT_SECONDS

_ONE_SECONDS = 5.0


class NodeAliveCheckerError(UnavailableError):
    """A process of the job does not answer."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)


class StartedServers:
    """The servers of a job by the numbers with which they were started.

    A job may start more servers than it needs: then the chief gives some of them their places by
    `settle`, and writes the numbers of these into `<model_dir>/ps_cluster_dir/<uuid>.places`.
    Workers find them there, and so does a server that starts again.

    Args:
        config: Config of the job.
        discovery: Knows the addresses of the servers.
        keys: CURVE keys of the job.

    Attributes:
        config: The config.
        num_started: Number of servers that are started.
    """

    def __init__(
        self,
        config: DistributedCpuTrainingConfig,
        discovery: ServiceDiscovery,
        keys: CurveKeys | None = None,
    ) -> None:
        self.config, self._discovery, self._keys = config, discovery, keys
        self.num_started = config.num_ps + config.num_extra_ps + config.num_redundant_ps
        name = f"{config.uuid or 'ps_info'}.places"
        self._path = posixpath.join(config.model_dir, PS_CLUSTER_DIR, name)
        millis = config.operation_timeout_in_ms
        self._timeout_seconds = millis / 1000 if millis > 0 else WAIT_SECONDS

    def places(self) -> list[int] | None:
        """Return the numbers of the job's servers in the order of their places.

        None if they are not chosen yet.
        """
        config = self.config
        if self.num_started == config.num_ps:
            return list(range(config.num_ps))
        try:
            numbers = [int(number) for number in read_file(self._path).decode().split(",")]
        except (NotFoundError, ValueError):
            return None
        is_right = len(set(numbers)) == config.num_ps and max(numbers) < self.num_started
        return numbers if is_right else None

    def registered(self) -> list[int]:
        """Return the numbers of the servers that have an address."""
        known = self._discovery.query(PS_JOB_NAME)
        return [number for number in range(self.num_started) if number in known]

    def addresses(self, numbers: list[int]) -> list[str]:
        """Return the addresses of servers; empty for those without."""
        known = self._discovery.query(PS_JOB_NAME)
        return [known.get(number, "") for number in numbers]

    def one(self, number: int) -> OneServer:
        """Return a connection to one server, whatever its place."""
        return OneServer(
            self._discovery,
            number,
            self.num_started,
            keys=self._keys,
            timeout_seconds=_ONE_SECONDS,
        )

    def numbers_of(self, addresses: list[str]) -> list[int]:
        """Return the numbers of servers by their addresses.

        Raises:
            UnavailableError: A server has no such address any more.
        """
        numbers = {address: n for n, address in self._discovery.query(PS_JOB_NAME).items()}
        missing = [address for address in addresses if address not in numbers]
        if missing:
            raise NodeAliveCheckerError(f"{','.join(missing)} is unreachable")
        return [numbers[address] for address in addresses]

    def settle(self, addresses: list[str]) -> None:
        """Give servers their places in this order; those of the job are written down."""
        numbers = self.numbers_of(addresses)
        for place, number in enumerate(numbers):
            with self.one(number) as server:
                server.renumber(place, len(numbers))
        if len(numbers) == self.config.num_ps:
            make_folder(posixpath.dirname(self._path))
            write_file(self._path, ",".join(map(str, numbers)).encode())

    def connect(self, numbers: list[int]) -> RemoteServers:
        """Return a connection to servers that have these places.

        Raises:
            NodeAliveCheckerError: A server does not answer.
        """
        worker = self.config.index, self.config.num_workers
        try:
            return find_servers(
                self._discovery,
                len(numbers),
                keys=self._keys,
                numbers=numbers,
                worker=worker,
                timeout_seconds=self._timeout_seconds,
            )
        except UnavailableError as error:
            addresses = ",".join(self.addresses(numbers))
            raise NodeAliveCheckerError(f"{addresses} is unreachable") from error
