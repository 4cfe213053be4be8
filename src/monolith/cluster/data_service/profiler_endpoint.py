"""`ProfilerEndpoint`: a process that others can ask for a trace of what it does."""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler
from torch.profiler import ProfilerActivity

from monolith.cluster.data_service.service_caller import ServiceCaller
from monolith.cluster.data_service.service_host import LIMITS, HostServer, ServiceHost
from monolith.cluster.discovery.mlp_env import PROFILER_PORT, MLPEnv
from monolith.cluster.host_verbs import Integer, Verb, Write
from monolith.cluster.zmq.client_loop import ClientLoop
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.cluster.zmq.server_loop import ServerLoop
from monolith.environment import tensorboard_path
from monolith.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from monolith.util.stores import local_path

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_MAX_MS = 600_000
_ANSWER_SECONDS = 60.0

PROFILER_VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "profile": Write(
            Integer("delay_ms", 0, _MAX_MS),
            Integer("duration_ms", 1, _MAX_MS),
            Integer("host_tracer_level", 0, 3),
            Integer("python_tracer_level", 0, 1),
            Integer("device_tracer_level", 0, 1),
        ),
    }
)
"""Verbs of a profiler. No argument names a file: the process itself knows where it writes."""


@dataclass(frozen=True)
class TraceOptions:
    """What a trace has.

    Args:
        delay_ms: Milliseconds before the trace begins, so that several processes begin together.
        duration_ms: Milliseconds of the trace.
        host_tracer_level: 0 leaves the operators on the CPU out.
        python_tracer_level: 1 adds the Python stack of each operator.
        device_tracer_level: 0 leaves the kernels of an accelerator out.
    """

    delay_ms: int = 10000
    duration_ms: int = 1000
    host_tracer_level: int = 2
    python_tracer_level: int = 0
    device_tracer_level: int = 1


class _ProfilerHost(ServiceHost):
    def __init__(self, directory: str) -> None:
        super().__init__("profiler", PROFILER_VERBS, frozenset())
        self._directory = directory
        self._is_profiling = threading.Lock()
        self._closing = threading.Event()
        self.num_traces = 0

    def status(self) -> dict[str, Any]:
        return {"label": self.label, "life": self.life, "traces": self.num_traces}

    def _do_profile(self, client: int, *numbers: int) -> str:
        """Write a trace; return its path."""
        options = TraceOptions(*numbers)
        activities = [ProfilerActivity.CPU] if options.host_tracer_level else []
        if options.device_tracer_level and torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        if not activities:
            raise InvalidArgumentError(
                "[profiler] expected host_tracer_level >= 1, or an accelerator and "
                "device_tracer_level >= 1, got levels that record nothing"
            )
        if not self._is_profiling.acquire(blocking=False):
            raise _busy()
        try:
            self._closing.wait(options.delay_ms / 1000)
            return self._trace(options, activities)
        finally:
            self._is_profiling.release()

    def _trace(self, options: TraceOptions, activities: list[ProfilerActivity]) -> str:
        if profiler._is_profiler_enabled:  # two profilers at once would end the process
            raise _busy()
        all_threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        profile = torch.profiler.profile(
            activities=activities,
            with_stack=bool(options.python_tracer_level),
            experimental_config=all_threads,
        )
        profile.start()
        self._closing.wait(options.duration_ms / 1000)
        profile.stop()
        os.makedirs(self._directory, exist_ok=True)
        name = f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}.pt.trace.json"
        path = os.path.join(self._directory, name)
        profile.export_chrome_trace(f"{path}.part")
        os.replace(f"{path}.part", path)
        self.num_traces += 1
        _log.info("the profiler has written %s", path)
        return path

    def close(self) -> None:
        self._closing.set()


def _busy() -> FailedPreconditionError:
    return FailedPreconditionError(
        "[profiler] expected a process that writes no trace, got one that does; ask again later"
    )


class ProfilerEndpoint:
    """Listens for requests of traces, which it writes with torch's profiler. Close it.

    Args:
        address: Address to listen at; port 0 takes a free port.
        directory: Folder for the traces; None takes `TENSORBOARD_LOG_PATH`.
        keys: CURVE keys of the job; None talks in the clear.
        is_insecure: Whether other machines may connect without keys.

    Attributes:
        address: Address with the port.

    Raises:
        InvalidArgumentError: The address needs keys, or there is no folder on this machine.
        UnavailableError: The address is in use.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:0",
        directory: str | None = None,
        *,
        keys: CurveKeys | None = None,
        is_insecure: bool = False,
    ) -> None:
        folder = directory or tensorboard_path()
        local = None if folder is None else local_path(folder)
        if local is None:
            raise InvalidArgumentError(
                "[ProfilerEndpoint] expected a folder of this machine for traces, got "
                f"{folder or 'none'}; set TENSORBOARD_LOG_PATH"
            )
        self._host = _ProfilerHost(local)
        self._loop = ServerLoop(
            HostServer(self._host), address, keys=keys, is_insecure=is_insecure, limits=LIMITS
        )
        self._loop.start()
        self.address = self._loop.address

    def close(self) -> None:
        """Finish a trace that is being written, and listen no more. Closing twice is fine."""
        self._host.close()
        self._loop.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def request_traces(
    addresses: list[str], options: TraceOptions | None = None, *, keys: CurveKeys | None = None
) -> dict[str, str]:
    """Return the path of the trace that each process has written, by address.

    The processes trace at the same time. A process that does not answer is logged and left out.

    Args:
        addresses: Where the profilers listen.
        options: What the traces have.
        keys: CURVE keys of the job; None sends in the clear.

    Raises:
        UnavailableError: No process has written a trace.
    """
    options = options or TraceOptions()
    seconds = (options.delay_ms + options.duration_ms) / 1000 + _ANSWER_SECONDS
    paths, failures = {}, []
    with contextlib.closing(ClientLoop()) as loop:
        callers = [ServiceCaller(loop, address, "the profiler", keys) for address in addresses]
        asked = [caller.start("profile", *astuple(options)) for caller in callers]
        for address, caller, future in zip(addresses, callers, asked, strict=True):
            try:
                paths[address] = str(future.result(seconds))
            except Exception as error:
                failures.append(f"{address}: {error}")
                _log.warning("there is no trace of %s: %s", address, error)
            caller.close()
    if not paths:
        raise UnavailableError(
            f"[profiler] expected a trace of {', '.join(addresses) or 'some process'}, got none"
            f"{': ' * bool(failures)}{'; '.join(failures)}"
        )
    return paths


def profiler_trace(
    role: str = "dsworker",
    index: int = -1,
    host_tracer_level: int = 2,
    python_tracer_level: int = 0,
    device_tracer_level: int = 1,
    delay_ms: int = 10000,
    *,
    duration_ms: int = 1000,
    port: int = PROFILER_PORT,
    keys: CurveKeys | None = None,
    env: MLPEnv | None = None,
) -> dict[str, str]:
    """Ask processes of the MLP launch environment for a trace of what they do.

    Each writes into the folder `TENSORBOARD_LOG_PATH` of its own environment.

    Args:
        role: Role of the processes.
        index: Number of one process; a negative number asks all.
        host_tracer_level: See `TraceOptions`, as for the next ones.
        python_tracer_level: See `TraceOptions`.
        device_tracer_level: See `TraceOptions`.
        delay_ms: See `TraceOptions`.
        duration_ms: See `TraceOptions`.
        port: Port of `MLPEnv.start_profiler`.
        keys: CURVE keys of the job; None sends in the clear.
        env: The environment; None takes that of the process.

    Returns:
        Path of the trace by the address of the process.

    Raises:
        UnavailableError: No process has written a trace.
    """
    env = MLPEnv() if env is None else env
    numbers = range(env.num_replicas(role)) if index < 0 else [index]
    addresses = [
        address for n in numbers if (address := env.profiler_addr(role, n, port)) is not None
    ]
    options = TraceOptions(
        delay_ms, duration_ms, host_tracer_level, python_tracer_level, device_tracer_level
    )
    return request_traces(addresses, options, keys=keys)
