"""`DispatcherProcess` and `DataWorkerProcess`: the processes of a data service."""

import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monolith.cluster.connection import Session
from monolith.cluster.data_service.data_worker import DataWorkerHost, MakeSource, SourceShares
from monolith.cluster.data_service.dispatcher import KIND as DISPATCHER
from monolith.cluster.data_service.dispatcher import DispatcherHost
from monolith.cluster.data_service.service_caller import ServiceCaller, service_address
from monolith.cluster.data_service.service_host import LIMITS, HostServer, ServiceHost
from monolith.cluster.data_service.service_verbs import MAX_READERS
from monolith.cluster.zmq.client_loop import ClientLoop
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.cluster.zmq.server_loop import ServerLoop
from monolith.errors import InvalidArgumentError, OpError
from monolith.util.host_address import local_host

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_ANY_HOST = frozenset({"0.0.0.0", "[::]", "*"})
_MAX_AHEAD = 64


@dataclass(frozen=True)
class ListenOptions:
    """Where a process of the data service listens.

    Args:
        address: Address; port 0 takes a free port.
        keys: CURVE keys of the job; None talks in the clear.
        is_insecure: Whether other machines may connect without keys.
        advertised: Address that others are told; None tells the own one, and that of this machine
            for an address that stands for all of a machine.
    """

    address: str = "tcp://127.0.0.1:0"
    keys: CurveKeys | None = None
    is_insecure: bool = False
    advertised: str | None = None


class _ServiceProcess:
    """A host that answers at a socket. Close it."""

    def __init__(self, host: ServiceHost, options: ListenOptions, num_threads: int) -> None:
        self._host, self._stop = host, threading.Event()
        self.loop = ServerLoop(
            HostServer(host),
            options.address,
            keys=options.keys,
            is_insecure=options.is_insecure,
            limits=LIMITS,
            num_threads=num_threads,
        )
        self.loop.start()
        self.address = _advertised(self.loop.address, options.advertised)

    def status(self) -> dict[str, Any]:
        """Return what a page about the process shows."""
        return {**self._host.status(), "messages": dict(self.loop.counts)}

    def request_stop(self) -> None:
        """Let `run` end. Safe in a handler of signals."""
        self._stop.set()

    def run(self, every_seconds: float = 1.0) -> None:
        """Wait until `request_stop`.

        Raises:
            OpError: The thread of the socket ended by an error.
        """
        while not self._stop.wait(every_seconds):
            if not self.loop.is_running:
                raise OpError(
                    f"[data service] expected the thread of the {self._host.label} to serve, got "
                    "its end by an error, which is in the log"
                )

    def close(self) -> None:
        """End the process's part of the service. Closing twice is fine."""
        self.loop.drain(1.0)
        self.loop.close()
        self._host.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class DispatcherProcess(_ServiceProcess):
    """The dispatcher of a data service. Close it.

    Args:
        options: Where it listens.
        num_readers: Number of data workers for which the data is divided; more may join.

    Attributes:
        address: Address that others are told.
        loop: The socket.

    Raises:
        InvalidArgumentError: The address needs keys, or is none.
        UnavailableError: The address is in use.

    Example:
        >>> with DispatcherProcess() as dispatcher:
        ...     dispatcher.status()["workers"]
        []
    """

    def __init__(self, options: ListenOptions | None = None, num_readers: int = 1) -> None:
        if not 1 <= num_readers <= MAX_READERS:
            raise InvalidArgumentError(
                f"[DispatcherProcess] expected num_readers in [1, {MAX_READERS}], got {num_readers}"
            )
        super().__init__(DispatcherHost(num_readers), options or ListenOptions(), 2)


class DataWorkerProcess(_ServiceProcess):
    """A data worker, which has joined the service of a dispatcher. Close it.

    It reads the source that it was made with: messages name shares of this source, and no code.

    Args:
        make_source: Returns the source of the task, for a number of data workers; called again for
            each share of a source that is no pipeline.
        dispatcher: Address of the dispatcher.
        options: Where it listens.
        facts: Lines that must be equal in all data workers, such as the task and its settings.
        ahead: Number of batches that are read ahead for each share.
        num_threads: Number of shares that are opened at once.
        timeout_seconds: Seconds to wait for the dispatcher.

    Attributes:
        address: Address that others are told.
        loop: The socket.

    Raises:
        UnavailableError: The dispatcher does not answer, or the address is in use.
        InvalidArgumentError: The dispatcher has data workers with another task or other data, or
            is none; or an option is wrong.
        TypeError: The source can be read once only, and there are several data workers.
    """

    def __init__(
        self,
        make_source: MakeSource,
        dispatcher: str,
        options: ListenOptions | None = None,
        *,
        facts: Sequence[str] = (),
        ahead: int = 4,
        num_threads: int = 4,
        timeout_seconds: float = 120.0,
    ) -> None:
        if not 1 <= ahead <= _MAX_AHEAD:
            raise InvalidArgumentError(
                f"[DataWorkerProcess] expected ahead in [1, {_MAX_AHEAD}], got {ahead}"
            )
        options = options or ListenOptions()
        self._client_loop = ClientLoop()
        try:
            self._dispatcher = ServiceCaller(
                self._client_loop,
                dispatcher,
                "the dispatcher of the data service",
                options.keys,
                self._join_again,
            )
            self.num_readers = self._readers(timeout_seconds)
            shares = SourceShares(make_source, self.num_readers)
            self._joined = (json.dumps(shares.names()), shares.num_epochs, json.dumps([*facts]))
            super().__init__(DataWorkerHost(shares, ahead), options, num_threads)
        except BaseException:
            self._client_loop.close()
            raise
        try:
            self._dispatcher.call("join_service", self.address, *self._joined)
        except BaseException:
            self.close()
            raise
        self._dispatcher.watch()

    def _readers(self, seconds: float) -> int:
        facts = self._dispatcher.call("describe_service", seconds=seconds)
        if not isinstance(facts, dict) or facts.get("kind") != DISPATCHER:
            raise InvalidArgumentError(
                f"[DataWorkerProcess] expected a dispatcher at {self._dispatcher.address}, got "
                f"another process; give the address of `monolith data-service dispatcher`"
            )
        return int(facts["num_readers"])

    def _join_again(self, session: Session) -> None:
        """Join a dispatcher that has started again. Called on a thread of the connection."""
        if hasattr(self, "address"):
            self._dispatcher.send(session, "join_service", self.address, *self._joined)
            _log.warning("joined the dispatcher again, which has started anew")

    def close(self) -> None:
        """Leave the service. Closing twice is fine."""
        self._dispatcher.close()
        super().close()
        self._client_loop.close()


def _advertised(listening: str, advertised: str | None) -> str:
    """Return the address that others are told."""
    if advertised is not None:
        return service_address(advertised)
    host, _, port = listening.removeprefix("tcp://").rpartition(":")
    if host not in _ANY_HOST:
        return listening
    own = local_host()
    return f"tcp://[{own}]:{port}" if ":" in own else f"tcp://{own}:{port}"
