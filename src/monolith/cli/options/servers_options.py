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


@dataclass(frozen=True)
class ServersOptions:
    """Options of `monolith train` for servers.

    Args:
        servers: A number of servers in the process, addresses with commas between them, or the
            folder of a discovery; None keeps the tables in the trainer.
        num_servers: Number of servers that a folder is to have.
        keys: File of CURVE keys.
        transfer: Dtype of rows and gradients in messages.
        timeout_seconds: Seconds that a call waits for its answer.
        worker: Number of this worker, and number of workers of the job.
    """

    servers: str | None
    num_servers: int | None
    keys: str | None
    transfer: str | None
    timeout_seconds: float | None
    worker: tuple[int, int] = (0, 1)

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

    def connect(self, text: str) -> "RemoteServers":
        """Connect to servers of other processes; wrong options and silent servers end the program.

        Args:
            text: Addresses, or a folder.
        """
        is_folder = text.startswith(("/", "./", "../", "~")) or os.path.isdir(text)
        if self.num_servers is not None and not {*text} & {*":,"}:
            is_folder = True  # the first server makes it
        if is_folder and self.num_servers is None:
            fail(f"expected --num-servers N with the folder {text!r} as --servers, got none", 2)
        if not is_folder and self.num_servers is not None:
            fail(f"expected a folder as --servers with --num-servers, got {text!r}", 2)
        try:
            servers = self._servers_of(text, is_folder)
        except ValueError as error:
            fail(str(error), status=2)
        except OpError as error:
            fail(str(error))
        say(f"connected to {len(servers)} server{'s' * (len(servers) > 1)} ({text})")
        return servers

    def _servers_of(self, text: str, is_folder: bool) -> "RemoteServers":
        from monolith.cluster.discovery import HostServiceDiscovery
        from monolith.cluster.zmq.connect import connect_servers, find_servers
        from monolith.cluster.zmq.curve_keys import read_keys

        options: dict[str, Any] = {
            "keys": None if self.keys is None else read_keys(self.keys),
            "timeout_seconds": 30.0 if self.timeout_seconds is None else self.timeout_seconds,
            "transfer": self.transfer or "float32",
            "worker": self.worker,
        }
        if is_folder:
            assert self.num_servers is not None
            discovery = HostServiceDiscovery(os.path.expanduser(text))
            return find_servers(discovery, self.num_servers, **options)
        return connect_servers([part for part in text.split(",") if part.strip()], **options)
