"""`RunFolder`: the folder of a job on one machine, with its logs and the addresses of its roles."""

import fcntl
import os
import shutil
import tempfile
from typing import IO, TYPE_CHECKING

from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from typing_extensions import Self

_LOCK = ".launch.lock"
_MAX_IPC_PATH = 107  # bytes of a path of a Unix socket
_LONGEST_NAME = "ps-000000"


class RunFolder:
    """The folder of a job, held by one launcher. Close it.

    A lock, which ends with the process however it ends, keeps other launchers out. Addresses of an
    earlier job in the folder are removed; its logs stay, and new ones are appended.

    Args:
        path: Folder; None makes a temporary one, which `close` removes after a success.

    Attributes:
        path: Absolute path of the folder.
        logs: Folder of the log files.
        discovery: Folder of the addresses.
        is_temporary: Whether `close` may remove the folder.

    Raises:
        FailedPreconditionError: A launcher that runs holds the folder.
        OSError: The folder cannot be written.
    """

    def __init__(self, path: str | None = None) -> None:
        self.is_temporary = path is None
        self.path = tempfile.mkdtemp(prefix="monolith-") if path is None else os.path.abspath(path)
        self.logs = os.path.join(self.path, "logs")
        self.discovery = os.path.join(self.path, "discovery")
        os.makedirs(self.logs, exist_ok=True)
        self._lock = _lock(os.path.join(self.path, _LOCK))
        shutil.rmtree(self.discovery, ignore_errors=True)
        os.makedirs(self.discovery)
        self._sockets: str | None = None

    def ipc_address(self, name: str) -> str:
        """Return an address of a Unix socket for a role, in a folder of this user only."""
        if self._sockets is None:
            # Not in the folder of the run: the path of a socket has to be short.
            size = len(os.path.join(tempfile.gettempdir(), "monolith-12345678", _LONGEST_NAME))
            folder = None if size <= _MAX_IPC_PATH else "/tmp"
            self._sockets = tempfile.mkdtemp(prefix="monolith-", dir=folder)
        return f"ipc://{os.path.join(self._sockets, name)}"

    def close(self, *, is_success: bool) -> None:
        """Remove sockets and, after a success, a temporary folder; let other launchers in."""
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
        if self.is_temporary and is_success:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close(is_success=False)


def _lock(path: str) -> IO[bytes]:
    file = open(path, "a+b", buffering=0)  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        number = file.read().decode() or "?"
        file.close()
        raise FailedPreconditionError(
            f"[launch] expected one launcher of a run folder, got a second one while process "
            f"{number} runs ({os.path.dirname(path)}); end that process, or choose another folder"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    return file


def folder_state(path: str | None) -> tuple[int, int, int]:
    """Return number, bytes and newest time of the files below a folder; zeros without a folder.

    Two values differ if a process wrote files in between.
    """
    num_files, num_bytes, newest = 0, 0, 0
    for folder, _, names in os.walk(path or os.devnull):
        for name in names:
            try:
                facts = os.stat(os.path.join(folder, name))
            except OSError:  # renamed or removed since the listing
                continue
            num_files, num_bytes = num_files + 1, num_bytes + facts.st_size
            newest = max(newest, facts.st_mtime_ns)
    return num_files, num_bytes, newest
