"""The interface by which processes of a job find each other."""

from abc import ABC, abstractmethod


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

    def close(self) -> None:  # noqa: B027 -- most have nothing to close
        """Free what the discovery holds."""
