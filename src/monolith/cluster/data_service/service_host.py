"""`ServiceHost`: the only host of a process of the data service, as its socket sees it."""

import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from monolith.cluster.call_host import Call, CallHost
from monolith.cluster.host_verbs import HostFacts, Verb, short
from monolith.cluster.zmq.sessions import Limits
from monolith.errors import NotFoundError

LIMITS = Limits(lease_seconds=15.0)
"""What clients of the data service may ask; one that is silent for the lease is given up."""


class ServiceHost(CallHost):
    """A `CalledServer` with one host, number 0. Any thread may call at any time.

    Args:
        label: Name of the process in messages.
        verbs: Verbs of the process; each is a method `_do_<verb>(client, *arguments)`.
        quick: Verbs that take microseconds.

    Attributes:
        life: Random number of this start.
    """

    index, num_servers = 0, 1

    def __init__(self, label: str, verbs: Mapping[str, Verb], quick: frozenset[str]) -> None:
        facts = HostFacts(label, [])
        facts.end = f"({label})"
        super().__init__(facts, verbs)
        self.label = self.device = label
        self.life = secrets.randbits(63)
        self._quick = quick

    def is_called(self, index: int, num_servers: int) -> bool:
        """Whether a client looks for a process of this kind: it has no number."""
        return (index, num_servers) == (0, 1)

    def is_quick(self, host: int, verb: str) -> bool:
        """Whether a small call of the verb may run where others wait for it."""
        return verb in self._quick

    def _run(self, call: Call) -> Any:
        do: Callable[..., Any] = getattr(self, f"_do_{call.verb}")
        return do(call.client, *call.arguments)

    def tick(self) -> None:
        """Answer calls that have waited long enough; called several times a second."""

    def end_waits(self) -> None:
        """Answer all calls that wait: the process ends."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Return what a page about the process shows."""

    def close(self) -> None:
        """Free what the process holds. Closing twice is fine."""


class HostServer:
    """Gives a `ServiceHost` to a `ServerLoop`, which numbers hosts.

    Args:
        host: The host.
    """

    def __init__(self, host: ServiceHost) -> None:
        self._host = host
        self.index, self.num_servers = host.index, host.num_servers
        self.label, self.life = host.label, host.life
        self.is_called, self.is_quick = host.is_called, host.is_quick
        self.tick, self.end_waits = host.tick, host.end_waits

    def do(self, host: int, call: Call) -> Any:
        """Do a call of host 0.

        Raises:
            NotFoundError: The call is for another host.
        """
        if host != 0:
            raise NotFoundError(
                f"[{type(self._host).__name__}] expected a call of host 0, got one of "
                f"{short(host)} ({self.label}); it is no parameter server"
            )
        return self._host.do(call)

    def release_client(self, client: int) -> None:
        """Free what a client held that is gone."""
        self._host.release_client(client)
