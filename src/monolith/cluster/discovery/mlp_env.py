"""`MLPEnv`: the roles and addresses of a job that the MLP launch environment has started."""

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from monolith.environment import variables
from monolith.util.host_address import local_host

if TYPE_CHECKING:
    from monolith.cluster.data_service.profiler_endpoint import ProfilerEndpoint
    from monolith.cluster.zmq.curve_keys import CurveKeys

_log = logging.getLogger(__name__)

_PREFIXES = ("MLP_", "MPI_")
_MPI = "OMPI_COMM_WORLD_"
_RANK, _SIZE, _LOCAL_SIZE = f"{_MPI}RANK", f"{_MPI}SIZE", f"{_MPI}LOCAL_SIZE"
_WORKER = "WORKER"
_DEFAULT_PORT = 2222
_DEFAULT_SSH_PORT = 22
_RETRY_SECONDS = 0.1  # between two tries of `check_port`
_WAIT_SECONDS = 5.0
_JOIN_SECONDS = 60.0

PROFILER_PORT = 6666
"""Port of the profiler of a process; under MPI plus the number of the process."""


def check_port(host: str, port: int, timeout: float = 1) -> bool:
    """Whether a TCP port accepts a connection within some seconds.

    Args:
        host: Name or address; an IPv6 address with or without brackets.
        port: Port.
        timeout: Seconds for all tries together; a refused connection is tried again.
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    end = time.monotonic() + timeout
    while (left := end - time.monotonic()) > 0:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.settimeout(left)
                connection.connect((bare, port))
                return True
        except TimeoutError:
            return False
        except OSError:
            time.sleep(min(_RETRY_SECONDS, max(0.0, end - time.monotonic())))
    return False


class MLPEnv:
    """What the variables `MLP_*` and `MPI_*` say about a job, as they are when this is made.

    Role names may have any case. The workers of an MPI job are numbered by their ranks.

    Args:
        environ: Variables; None takes those of the process.
        wait_seconds: Seconds between two tries of `wait`.
        join_seconds: Seconds that `join` gives each check of a port, and between two checks.

    Attributes:
        role: Role of this process in capitals; empty without one.
        index: Number of this process in its role.
        port: Port of this process.
        all_roles: Number of processes of each role.
        enable_mpi: Whether this process is a worker of an MPI job.
        avaiable: Whether there are such variables, and a role with processes.
        host: Address of this machine.
        ssh_port: Port that answers as long as a machine of the job is there.

    Example:
        >>> env = MLPEnv({"MLP_ROLE": "worker", "MLP_WORKER_NUM": "2", "MLP_PS_NUM": "1",
        ...               "MLP_PS_0_PRIMARY_HOST": "10.0.0.1", "MLP_PS_0_PORT": "7000"})
        >>> env.role, env.index, env.num_replicas(), env.get_addr("ps")
        ('WORKER', 0, 2, '10.0.0.1:7000')
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        wait_seconds: float = _WAIT_SECONDS,
        join_seconds: float = _JOIN_SECONDS,
    ) -> None:
        given = variables(*_PREFIXES, _MPI) if environ is None else environ
        self._env = {n: v for n, v in given.items() if n.startswith((*_PREFIXES, _MPI))}
        self._wait_seconds, self._join_seconds = wait_seconds, join_seconds
        self._profiler: ProfilerEndpoint | None = None
        self.framework = self._get("MLP_FRAMEWORK")
        self.ssh_port = self._int("MLP_SSH_PORT", _DEFAULT_SSH_PORT)
        self.log_path = self._get("MLP_LOG_PATH")
        self.debug_port = self._get("MLP_DEBUG_PORT")
        self.entrypoint_dir = self._get("MLP_ENTRYPOINT_DIR")
        self.task_cmd = self._get("MLP_TASK_CMD")
        self.role = (self._get("MLP_ROLE") or "").upper()
        self.cpu, self.gpu = self._int("MLP_CPU"), self._int("MLP_GPU")
        self.gpu_type, self.mem = self._get("MLP_GPU_TYPE") or "", self._int("MLP_MEM")
        roles = {
            name.split("_")[1]: self._int(name)
            for name in self._env
            if name.startswith("MLP_") and name.endswith("_NUM") and name.count("_") == 2
        }
        self.enable_mpi = _RANK in self._env and self.role == _WORKER
        self.index, self.port = self._int("MLP_ROLE_INDEX"), self._int("MLP_PORT")
        if self.enable_mpi:
            self.index = self._int(_RANK)
            self.port += self.index
            roles[_WORKER] = self.mpi_size
        self.all_roles: Mapping[str, int] = MappingProxyType(roles)
        self.avaiable = bool(roles) and any(n.startswith(_PREFIXES) for n in self._env)
        self.host = local_host()

    @property
    def available(self) -> bool:
        """The same as `avaiable`."""
        return self.avaiable

    @property
    def mpi_size(self) -> int:
        """Number of processes of the MPI job; 1 without one."""
        return self._int(_SIZE, 1)

    @property
    def queue_device(self) -> str:
        """Label of the device that holds queues which all processes share."""
        for role in ("PS", _WORKER):
            if self.num_replicas(role) > 0:
                return f"/job:{role.lower()}/task:0/device:CPU:0"
        return "/device:CPU:0"

    def _get(self, name: str, default: str | None = None) -> str | None:
        """Return a variable without blanks and quotes around it; the default for an empty one."""
        return self._env.get(name, "").strip(" \t\n'\"") or default

    def _int(self, name: str, default: int = 0) -> int:
        text = self._get(name)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError as error:
            raise ValueError(
                f"[MLPEnv] expected a whole number in {name}, got {text!r}; correct the variable"
            ) from error

    def _role(self, role: str | None) -> str:
        return (role or self.role).upper()

    def _is_mpi_worker(self, role: str) -> bool:
        return self.enable_mpi and role == _WORKER

    def _index(self, role: str, index: int | None) -> int:
        if index is not None:
            return index
        return self.index if role == self.role else 0

    def num_replicas(self, role: str | None = None) -> int:
        """Return the number of processes of a role; None means the own role."""
        return self.all_roles.get(self._role(role), 0)

    def get_all_host(self, role: str | None = None, is_primary: bool = True) -> str | None:
        """Return the hosts of a role with commas between them; None without such a variable."""
        kind = "ALL_PRIMARY_HOSTS" if is_primary else "ALL_HOSTS"
        return self._get(f"MLP_{self._role(role)}_{kind}")

    def get_all_addrs(self, role: str | None = None, is_primary: bool = True) -> list[str]:
        """Return the addresses of a role; an empty list without such a variable."""
        kind = "ALL_PRIMARY_ADDRS" if is_primary else "ALL_ADDRS"
        text = self._get(f"MLP_{self._role(role)}_{kind}") or ""
        return [part.strip() for part in text.split(",") if part.strip()]

    def get_host(
        self, role: str | None = None, index: int | None = None, is_primary: bool = True
    ) -> str | None:
        """Return the host of a process; None without such a variable.

        Args:
            role: None means the own role.
            index: None means this process in the own role, else process 0.
            is_primary: Whether the address of the first network device is meant.
        """
        role = self._role(role)
        index = self._index(role, index)
        if self._is_mpi_worker(role):  # hosts are numbered, not ranks
            index //= max(1, self._int(_LOCAL_SIZE, 1))
        return self._get(f"MLP_{role}_{index}_{'PRIMARY_HOST' if is_primary else 'HOST'}")

    def get_addr(
        self, role: str | None = None, index: int | None = None, is_primary: bool = True
    ) -> str | None:
        """Return `host:port` of a process; None if one of them is not known. See `get_host`."""
        role = self._role(role)
        index = self._index(role, index)
        host = self.get_host(role, index, is_primary)
        first = 0 if self._is_mpi_worker(role) else index
        if host is None or self._get(f"MLP_{role}_{first}_PORT") is None:
            return None
        bare = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return f"{bare}:{self.get_port(role, index)}"

    def get_port(self, role: str | None = None, index: int | None = None) -> int:
        """Return the port of a process, by default counted from 2222. See `get_host`."""
        role = self._role(role)
        index = self._index(role, index)
        if self._is_mpi_worker(role):
            return self._int(f"MLP_{role}_0_PORT", _DEFAULT_PORT) + index
        return self._int(f"MLP_{role}_{index}_PORT", _DEFAULT_PORT)

    def dispatcher_addr(self, role: str | None = None) -> str | None:
        """Return the address of the dispatcher of the data service."""
        return self.get_addr(role or "dispatcher", 0)

    def dispatcher_target(self, role: str | None = None) -> str:
        """Return the dispatcher of the data service as a target of clients."""
        return f"grpc://{self.dispatcher_addr(role) or 'localhost:5050'}"

    def wait(
        self, role: str | None = None, index: int = 0, timeout: float = -1, use_ssh: bool = True
    ) -> None:
        """Wait until a process answers.

        Args:
            role: None means the own role.
            index: Number of the process.
            timeout: Seconds to wait at most; a number that is not positive waits without a limit.
            use_ssh: Whether the machine is asked at its port for ssh, instead of the process.
        """
        host, port = self.get_host(role, index), self._asked_port(role, index, use_ssh)
        who = f"{self._role(role).lower()} {index}"
        if host is None:
            _log.info("there is no host of %s to wait for", who)
            return
        start = time.monotonic()
        while not check_port(host, port):
            seconds = time.monotonic() - start
            if 0 < timeout <= seconds:
                _log.warning("%s at %s:%d did not answer in %.0f s", who, host, port, seconds)
                return
            _log.info("waiting for %s at %s:%d, since %.0f s", who, host, port, seconds)
            time.sleep(self._wait_seconds)
        _log.info("%s at %s:%d answers", who, host, port)

    def _asked_port(self, role: str | None, index: int, use_ssh: bool) -> int:
        return self.ssh_port if use_ssh else self.get_port(role, index)

    def join(
        self,
        role: str = "worker",
        index: int = 0,
        use_ssh: bool = True,
        *,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        """Wait for the end of another process, and then end this one at once with status 0.

        Args:
            role: Role of the other process.
            index: Its number.
            use_ssh: See `wait`.
            leave: Ends the process.
        """
        self.wait(role, index, use_ssh=use_ssh)
        host, port = self.get_host(role, index), self._asked_port(role, index, use_ssh)
        while host is not None and check_port(host, port, self._join_seconds):
            time.sleep(self._join_seconds)
        _log.info("%s %d at %s:%d is gone; this process ends", role, index, host, port)
        self.stop_profiler()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        leave(0)

    def profiler_addr(
        self, role: str | None = None, index: int | None = None, port: int = PROFILER_PORT
    ) -> str | None:
        """Return where the profiler of a process listens; None if its host is not known."""
        host = self.get_host(role, index)
        if host is None:
            return None
        number = self._index(self._role(role), index)
        is_shared = self._is_mpi_worker(self._role(role))  # several processes of one machine
        return f"{_bracketed(host)}:{port + number if is_shared else port}"

    def start_profiler(
        self,
        port: int = PROFILER_PORT,
        *,
        keys: "CurveKeys | None" = None,
        is_insecure: bool = False,
    ) -> None:
        """Let others ask this process for traces; under MPI its number is added to the port.

        Without keys only processes of this machine can ask, unless `is_insecure` is set.
        """
        from monolith.cluster.data_service.profiler_endpoint import ProfilerEndpoint

        if self._profiler is not None:
            return
        is_open = keys is not None or is_insecure
        host = _bracketed(self.host) if is_open else "127.0.0.1"
        number = port + self.index if self.enable_mpi else port
        self._profiler = ProfilerEndpoint(f"{host}:{number}", keys=keys, is_insecure=is_insecure)
        _log.info("the profiler listens at %s", self._profiler.address)

    def stop_profiler(self) -> None:
        """End the profiler, if it was started."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.close()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
