"""The way to a server in another process, and the hosts behind it."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from monolith.cluster.call_host import Call
from monolith.cluster.transport import Pending, Transport


class HostHandle:
    """A host of a server, as clients name it.

    Attributes:
        number: Number of the host in the server's present life; read at each sending.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number


class Session(ABC):
    """Sends calls to the hosts of one server. Any thread may send at any time.

    Attributes:
        label: Name of the server in messages.
    """

    label: str

    @abstractmethod
    def send(self, handle: HostHandle, call: Call) -> Pending:
        """Send a call without waiting for its answer.

        Raises:
            UnavailableError: The connection is closed.
        """


class Connection(Session):
    """Keeps calls over lost connections, and sends them again until they have an answer.

    Attributes:
        on_new_life: Called on a thread of the connection when the server turns out to be a new
            process without the tables of the old one. Ordinary calls wait meanwhile, and the
            session that is passed sends to the new process. After it returns, all calls without an
            answer are sent again, to the numbers that the handles have then; if it raises, they get
            the error. With None they get an `AbortedError` that names the server.
        is_watching: Whether the connection looks for a new process even if no call waits.
    """

    on_new_life: Callable[[Session], None] | None = None
    is_watching = False

    @abstractmethod
    def close(self) -> None:
        """End the connection; calls without an answer get an `UnavailableError`."""


class RemoteTransport(Transport):
    """The way to a host of a server in another process.

    Args:
        session: Sends the calls.
        handle: Host that gets the calls.
        timeout_seconds: Seconds to wait for an answer; the connection repeats what is lost.
    """

    num_tries = 1

    def __init__(self, session: Session, handle: HostHandle, timeout_seconds: float) -> None:
        self._session, self._handle = session, handle
        self.device, self.timeout_seconds = session.label, timeout_seconds

    def send(self, call: Call) -> Pending:
        """Send the call to the host's present number."""
        return self._session.send(self._handle, call)
