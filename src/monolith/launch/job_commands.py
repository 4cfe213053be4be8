"""`JobCommands`: the command lines of the servers and workers of a job on one machine."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from monolith.launch.job_status import PS, WORKER
from monolith.launch.role_process import Role
from monolith.launch.run_folder import RunFolder

THREADS_KEY = "train.threads"
"""Setting with the number of threads of a worker."""

# With -c the working directory is the first place of imports; a file there may be named like a
# module of ours or of Python.
_MAIN = (
    "import sys; sys.path[:] = filter(None, sys.path); from monolith.cli.main import main; main()"
)
_MACHINE = ("--no-hints", "--json")  # the launcher reads the output and names the next commands
PROGRAM = (sys.executable, "-c", _MAIN)
"""Command line of `monolith`, without a subcommand."""


@dataclass(frozen=True)
class JobCommands:
    """The task of a job, its size, and the options that its roles get.

    Args:
        task: Task file or key.
        num_servers: Number of servers.
        num_workers: Number of workers.
        data: Values of `--data`.
        settings: Values of `--set`.
        settings_file: Value of `--settings`; None without one.
        worker_options: Values of further options of a worker, such as `{"--save-every": 100}`;
            options with None are left out, and options with True have no value.
        discovery: Where the roles find each other; None takes a folder of the run.
        environment_of: Function of the kind and the number of a role that returns its variables.
        with_tcp: Whether servers listen at ports instead of Unix sockets.
        num_threads: Number of threads of a worker; None leaves it to the settings.
        status_seconds: Seconds between two reports of a server.
        program: Command line of `monolith`.
    """

    task: str
    num_servers: int
    num_workers: int
    data: Sequence[str] = ()
    settings: Sequence[str] = ()
    settings_file: str | None = None
    worker_options: Mapping[str, object] = field(default_factory=dict)
    discovery: str | None = None
    environment_of: Callable[[str, int], Mapping[str, str]] | None = None
    with_tcp: bool = False
    num_threads: int | None = None
    status_seconds: float = 1.0
    program: tuple[str, ...] = PROGRAM

    def roles(self, folder: RunFolder) -> list[Role]:
        """Return the roles of the job, servers first."""
        servers = [self._server(index, folder) for index in range(self.num_servers)]
        return servers + [self._worker(index, folder) for index in range(self.num_workers)]

    def _server(self, index: int, folder: RunFolder) -> Role:
        address = None  # with fixed places, that of the role
        if self.environment_of is None:
            address = "127.0.0.1:0" if self.with_tcp else folder.ipc_address(f"{PS}-{index}")
        options = {
            "--index": index,
            "--num-servers": self.num_servers,
            "--discovery": self.discovery or folder.discovery,
            "--bind": address,
            "--status-seconds": f"{self.status_seconds:g}",
            "--settings": self.settings_file,
        }
        return self._role(PS, index, option_words(options))

    def _worker(self, index: int, folder: RunFolder) -> Role:
        options = {
            "--index": index,
            "--num-workers": self.num_workers,
            "--servers": self.discovery or folder.discovery,
            "--num-servers": self.num_servers,
            "--settings": self.settings_file,
            **self.worker_options,
        }
        data = [word for path in self.data for word in ("--data", path)]
        threads = [] if self.num_threads is None else ["--set", f"{THREADS_KEY}={self.num_threads}"]
        return self._role(WORKER, index, [*option_words(options), *data, *threads])

    def _role(self, kind: str, index: int, words: Sequence[str]) -> Role:
        settings = [word for text in self.settings for word in ("--set", text)]
        command = (*self.program, kind, self.task, *words, *settings, *_MACHINE)
        variables = {} if self.environment_of is None else self.environment_of(kind, index)
        return Role(kind, index, command, variables)


def option_words(options: Mapping[str, object]) -> list[str]:
    """Return options and values as words of a command line.

    Example:
        >>> option_words({"--save-every": 10, "--resume": True, "--save-rate": None})
        ['--save-every', '10', '--resume']
    """
    words = []
    for name, value in options.items():
        if value is not None and value is not False:
            words += [name] if value is True else [name, str(value)]
    return words


def threads_per_worker(num_roles: int) -> int:
    """Return the cores of this process divided by the number of roles, at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // num_roles)
