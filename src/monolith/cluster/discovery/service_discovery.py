"""The interface by which processes of a job find each other."""

import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from monolith.errors import UnavailableError

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.05, 0.5


class DiscoveryError(UnavailableError, ConnectionError):
    """A discovery does not answer, or answers with an error of its own."""


@dataclass(frozen=True)
class Place:
    """What the environment of a process says about its part in the job.

    Args:
        name: Kind of the process: "ps" or "worker".
        index: Number of the process among those of its kind.
        address: Address at which the process listens, as `host:port`.
        sizes: Kind -> number of processes.
    """

    name: str
    index: int
    address: str
    sizes: Mapping[str, int]


class ServiceDiscovery(ABC):
    """Addresses of processes by name, such as "ps", and index."""

    @abstractmethod
    def register(self, name: str, index: int, addr: str) -> None:
        """Tell the others the address of a process."""

    @abstractmethod
    def deregister(self, name: str, index: int, addr: str) -> None:
        """Take back what `register` told, where the discovery can."""

    @abstractmethod
    def query(self, name: str) -> dict[int, str]:
        """Return the addresses of all processes of a name, by index."""

    @property
    def place(self) -> Place | None:
        """Part of this process in the job, where the environment says it; otherwise None."""
        return None

    def environment_of(self, name: str, index: int) -> dict[str, str]:
        """Return variables that fix another part of the job for a process; most fix none."""
        return {}

    def hold(self, name: str, index: int) -> None:  # noqa: B027 -- fixed addresses have one holder
        """Take an index for this process, until `close` or its end, however it ends.

        A discovery whose addresses are fixed has nothing to hold.

        Raises:
            FailedPreconditionError: Another process holds the index.
        """

    def wait_change(
        self, name: str, known: Mapping[int, str], timeout_seconds: float
    ) -> dict[int, str]:
        """Return the addresses of a name as soon as they differ from those that the caller knows.

        Args:
            name: Kind of processes.
            known: Addresses that the caller knows, by index.
            timeout_seconds: Seconds after which the addresses are returned unchanged.
        """
        end, pause = time.monotonic() + timeout_seconds, _FIRST_PAUSE_SECONDS
        while True:
            addresses = self.query(name)
            left = end - time.monotonic()
            if addresses != known or left <= 0:
                return addresses
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _MAX_PAUSE_SECONDS)

    def close(self) -> None:  # noqa: B027 -- most have nothing to close
        """Free what the discovery holds."""


def holder_text() -> str:
    """Return what a process writes where it holds an index.

    Example:
        >>> holder_text().startswith(f"process {os.getpid()} on ")
        True
    """
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on {socket.gethostname()}, since {since}"
