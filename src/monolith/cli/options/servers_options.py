"""Connect `monolith train` and `monolith worker` to the servers of `--servers`."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monolith.cli.console import fail, say
from monolith.errors import OpError

if TYPE_CHECKING:
    from monolith.cluster import RemoteServers
    from monolith.cluster.discovery import ServiceDiscovery


@dataclass(frozen=True)
class ServersOptions:
    """Options of `monolith train` for servers.

    Args:
        servers: A number of servers in the process, addresses with commas between them, or the
            folder or the URI of a discovery; None keeps the tables in the trainer.
        num_servers: Number of servers that a discovery is to have.
        keys: File of CURVE keys.
        transfer: Dtype of rows and gradients in messages.
        timeout_seconds: Seconds that a call waits for its answer.
        worker: Number of this worker, and number of workers of the job.
        is_worker: Whether no other process may be this worker of the job.
    """

    servers: str | None
    num_servers: int | None
    keys: str | None
    transfer: str | None
    timeout_seconds: float | None
    worker: tuple[int, int] = (0, 1)
    is_worker: bool = False

    @contextlib.contextmanager
    def opened(self) -> "Iterator[RemoteServers | int | None]":
        """Connect to the servers; what the block gets is the argument `servers` of a `Trainer`.

        Wrong options and servers that do not answer end the program, with status 2 and 1.
        """
        text = self.servers
        is_remote = text is not None and not text.isdecimal()
        others = {
            "--num-servers": self.num_servers,
            "--keys": self.keys,
            "--transfer": self.transfer,
            "--server-timeout": self.timeout_seconds,
        }
        alone = [option for option, value in others.items() if value is not None]
        if alone and not is_remote:
            fail(f"expected addresses or a folder as --servers with {alone[0]}, got {text}", 2)
        if text is None or not is_remote:
            yield int(text) if text else None
            return
        with self.connect(text) as servers:
            yield servers

    @contextlib.contextmanager
    def connect(self, text: str) -> "Iterator[RemoteServers]":
        """Connect to servers of other processes; wrong options and silent servers end the program.

        Args:
            text: Addresses, or the folder or the URI of a discovery.
        """
        from monolith.cli.options.discovery_options import opened

        with contextlib.ExitStack() as stack:
            discovery = None
            if (uri := self._discovery_of(text)) is not None:
                discovery = stack.enter_context(contextlib.closing(opened(uri)))
            try:
                if discovery is not None and self.is_worker:
                    discovery.hold("worker", self.worker[0])
                servers = stack.enter_context(self._servers_of(text, discovery))
            except ValueError as error:
                fail(str(error), status=2)
            except (OpError, OSError) as error:
                fail(str(error))
            say(f"connected to {len(servers)} server{'s' * (len(servers) > 1)} ({text})")
            yield servers

    def _discovery_of(self, text: str) -> str | None:
        """Return the text if it names a discovery; None for addresses."""
        from monolith.cluster.discovery.uris import is_discovery

        if is_discovery(text):
            if self.num_servers is None:
                fail(f"expected --num-servers N with the discovery {text!r}, got none", 2)
            return text
        is_folder = text.startswith(("/", "./", "../", "~")) or os.path.isdir(text)
        if self.num_servers is not None and not {*text} & {*":,"}:
            is_folder = True  # the first server makes it
        if is_folder and self.num_servers is None:
            fail(f"expected --num-servers N with the folder {text!r} as --servers, got none", 2)
        if not is_folder and self.num_servers is not None:
            fail(f"expected a folder as --servers with --num-servers, got {text!r}", 2)
        return text if is_folder else None

    def _servers_of(self, text: str, discovery: "ServiceDiscovery | None") -> "RemoteServers":
        from monolith.cluster.zmq.connect import connect_servers, find_servers
        from monolith.cluster.zmq.curve_keys import read_keys

        options: dict[str, Any] = {
            "keys": None if self.keys is None else read_keys(self.keys),
            "timeout_seconds": 30.0 if self.timeout_seconds is None else self.timeout_seconds,
            "transfer": self.transfer or "float32",
            "worker": self.worker,
        }
        if discovery is not None:
            assert self.num_servers is not None
            return find_servers(discovery, self.num_servers, **options)
        return connect_servers([part for part in text.split(",") if part.strip()], **options)
