"""`MLPServiceDiscovery`: addresses of processes that the MLP launch environment has started."""

import threading

from monolith.cluster.discovery.mlp_env import MLPEnv, check_port
from monolith.cluster.discovery.service_discovery import Place, ServiceDiscovery
from monolith.util.host_address import local_host

_ROLES = ("ps", "worker", "chief")
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_PORT_SECONDS = 3600.0


class MLPServiceDiscovery(ServiceDiscovery):
    """Discovery by environment variables: all addresses are known from the start.

    `deregister` hides a process from this object, and `register` shows it again. Thread-safe.

    Args:
        env: Variables; None takes those of the process.
        port_seconds: Seconds for which `query` waits for each server to answer for the first time;
            None asks no server.

    Attributes:
        server_type: Role of this process in lower case.
        index: Number of this process in its role.
    """

    def __init__(
        self, env: MLPEnv | None = None, *, port_seconds: float | None = _PORT_SECONDS
    ) -> None:
        self._env = MLPEnv() if env is None else env
        self._port_seconds = port_seconds
        self._hidden: set[str] = set()
        self._answered: set[str] = set()  # a server that is away later is waited for elsewhere
        self._lock = threading.Lock()

    @property
    def server_type(self) -> str:
        """Role of this process in lower case."""
        return self._env.role.lower()

    @property
    def index(self) -> int:
        """Number of this process in its role."""
        return self._env.index

    @property
    def place(self) -> Place | None:
        """Part of this process in the job; None for a role that trains nothing."""
        addr = self._env.get_addr()
        if self.server_type not in ("ps", "worker") or addr is None:
            return None
        sizes = {role: self._env.num_replicas(role) for role in ("ps", "worker")}
        return Place(self.server_type, self.index, addr, sizes)

    def register(self, name: str, index: int, addr: str) -> None:
        """Show a process, whose address must be that of the environment.

        Raises:
            AssertionError: The role, the number or the address is another one.
        """
        key = self._checked("register", name, index, addr)
        with self._lock:
            self._hidden.discard(key)

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Hide a process, whose address must be that of the environment.

        Raises:
            AssertionError: The role, the number or the address is another one.
        """
        key = self._checked("deregister", name, index, addr)
        with self._lock:
            self._hidden.add(key)

    def deregister_all(self) -> None:
        """Hide all processes."""
        with self._lock:
            for role, count in self._env.all_roles.items():
                self._hidden.update(_key(role, index) for index in range(count))

    def query(self, name: str, skip_port_check: bool = False) -> dict[int, str]:
        """Return the addresses of the processes of a role that are not hidden, by number.

        Args:
            name: Role.
            skip_port_check: Whether servers need not answer.

        Raises:
            AssertionError: A server does not answer.
        """
        addresses = self._addresses(name)
        if name.lower() == "ps" and not skip_port_check and self._port_seconds is not None:
            for addr in set(addresses.values()) - self._answered:
                host, _, port = addr.rpartition(":")
                if not check_port(host, int(port), self._port_seconds):
                    raise AssertionError(f"{addr} connect error!")
                self._answered.add(addr)
        return addresses

    def query_all(self) -> dict[str, dict[int, str]]:
        """Return the addresses of servers, workers and chief, without a check whether they answer.

        A role without processes is left out.
        """
        return {role: self._addresses(role) for role in _ROLES if self._env.num_replicas(role)}

    def _addresses(self, name: str) -> dict[int, str]:
        with self._lock:
            hidden = set(self._hidden)
        addresses = {}
        for index in range(self._env.num_replicas(name)):
            addr = self._env.get_addr(name, index)
            if addr is not None and _key(name, index) not in hidden:
                addresses[index] = addr
        return addresses

    def _checked(self, verb: str, name: str, index: int, addr: str) -> str:
        """Return the key of a process whose address is the expected one."""
        env, where = self._env, f"[MLPServiceDiscovery.{verb}]"
        if name.upper() not in env.all_roles:
            known = ", ".join(role.lower() for role in env.all_roles) or "none"
            raise AssertionError(f"{where} expected one of the roles {known}, got {name!r}")
        count = env.num_replicas(name)
        if not 0 <= index < count:
            raise AssertionError(f"{where} expected {name} in [0, {count}), got {index}")
        host, _, port = addr.rpartition(":")
        expected = env.get_port(name, index)
        if port != str(expected):
            raise AssertionError(f"{where} expected port {expected} of {name} {index}, got {addr}")
        bare = host.strip("[]")
        hosts = {env.get_host(name, index, is_primary) for is_primary in (True, False)}
        if bare not in hosts | _LOCAL_HOSTS | {env.host, local_host()}:
            raise AssertionError(
                f"{where} expected the host of {name} {index}, {env.get_host(name, index)}, or "
                f"this machine, got {addr}"
            )
        return _key(name, index)


def _key(name: str, index: int) -> str:
    return f"{name.lower()}:{index}"
