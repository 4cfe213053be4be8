"""`HostServiceDiscovery`: a folder with a file for each process, which holds its address."""

import contextlib
import fcntl
import os
import tempfile
from typing import IO

from monolith.cluster.discovery.service_discovery import ServiceDiscovery, holder_text
from monolith.errors import FailedPreconditionError, InvalidArgumentError

_MAX_ADDRESS_BYTES = 4096
_MAX_HOLDER_BYTES = 200


class HostServiceDiscovery(ServiceDiscovery):
    """Discovery by files of one machine, or of a file system that all machines share.

    The address of server 3 is in the file `<base_path>/ps/3`. A file stays when its process ends,
    so that clients wait for its next start; a lock shows whether a process holds its index.

    Args:
        base_path: Folder of the job; made if missing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as path:
        ...     HostServiceDiscovery(path).register("ps", 0, "127.0.0.1:7000")
        ...     HostServiceDiscovery(path).query("ps")
        {0: '127.0.0.1:7000'}
    """

    def __init__(self, base_path: "str | os.PathLike[str]") -> None:
        self._base = os.fspath(base_path)
        self._locks: dict[tuple[str, int], IO[bytes]] = {}

    def register(self, name: str, index: int, addr: str) -> None:
        """Write the address of a process, in place of an older one."""
        folder = self._folder(name)
        os.makedirs(folder, exist_ok=True)
        number, path = tempfile.mkstemp(prefix=f".{index}.", dir=folder)
        with open(number, "w", encoding="utf-8") as file:
            file.write(addr)
        os.replace(path, os.path.join(folder, str(index)))

    def hold(self, name: str, index: int) -> None:
        """Take an index for this process, until `close` or its end, however it ends.

        Raises:
            FailedPreconditionError: Another process holds the index.
        """
        if (name, index) in self._locks:
            return
        folder = self._folder(name)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f".{index}.lock")
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open(path, "a+b", buffering=0))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                holder = file.read(_MAX_HOLDER_BYTES).decode(errors="backslashreplace")
                raise FailedPreconditionError(
                    f"[HostServiceDiscovery.hold] expected that no process is {name} {index}, got "
                    f"one that is alive: {holder or 'not named'} ({self._base}); end it first, or "
                    "choose another index"
                ) from error
            file.truncate(0)
            file.write(holder_text().encode())
            stack.pop_all()
        self._locks[name, index] = file

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Keep the file: clients wait at its address for the next start of the process."""

    def query(self, name: str) -> dict[int, str]:
        """Return the addresses of a name by index; none where the folder is missing."""
        folder = self._folder(name)
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return {}
        addresses = {}
        for file_name in names:
            if file_name.isdecimal():
                address = _address_in(os.path.join(folder, file_name))
                if address:
                    addresses[int(file_name)] = address
        return dict(sorted(addresses.items()))

    def close(self) -> None:
        """Give back the indices that `hold` took. Closing twice is fine."""
        while self._locks:
            self._locks.popitem()[1].close()

    def _folder(self, name: str) -> str:
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise InvalidArgumentError(
                f"[HostServiceDiscovery] expected the name of a kind of process, got {name!r}"
            )
        return os.path.join(self._base, name)


def _address_in(path: str) -> str:
    """Return the address that a file has; empty for a file without one."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_MAX_ADDRESS_BYTES).strip()
    except (FileNotFoundError, UnicodeDecodeError):  # removed meanwhile, or not written by us
        return ""
