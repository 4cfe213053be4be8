"""`ClusterJob`: what servers and workers of a job run, whatever scheduler starts them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from monolith.errors import InvalidArgumentError
from monolith.launch.job_commands import THREADS_KEY, option_words

PROGRAM = "monolith"
MAX_NAME = 40
"""Characters of the name of a job: names of pods and services add to it, up to 63."""

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_MEMORY = re.compile(r"([1-9][0-9]*)(Mi|Gi)")
_MEBIBYTES = MappingProxyType({"Mi": 1, "Gi": 1024})
SERVER_SECONDS = 300.0  # a scheduler takes longer to start a server again than a launcher
_MIN_SERVER_THREADS = 2


@dataclass(frozen=True)
class ClusterJob:
    """A job for a scheduler. Its values are quoted where they are printed, not before.

    Args:
        name: Name of the job: lower-case letters, digits and `-`, from a letter on, at most 40.
        task: Task file or key, as the roles see it.
        num_servers: Number of servers.
        num_workers: Number of workers.
        data: Values of `--data`.
        settings: Values of `--set`.
        settings_file: Value of `--settings`, as the roles see it; None without one.
        worker_options: Values of further options of a worker, by their names.
        keys: File of the CURVE keys, as the roles see it.
        cpus: Cores of a role.
        memory: Memory of a role, such as "4Gi" or "512Mi".
        restarts: Restarts of a role, or of the whole job, after which the job fails.
        grace_seconds: Seconds that the roles have for the last save.
        has_threads: Whether the settings have the number of threads of a worker.

    Raises:
        InvalidArgumentError: A value is none that the scheduler could take.
    """

    name: str
    task: str
    num_servers: int
    num_workers: int
    keys: str
    data: Sequence[str] = ()
    settings: Sequence[str] = ()
    settings_file: str | None = None
    worker_options: Mapping[str, object] = field(default_factory=dict)
    cpus: int = 2
    memory: str = "4Gi"
    restarts: int = 3
    grace_seconds: int = 120
    has_threads: bool = False

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None or len(self.name) > MAX_NAME:
            raise InvalidArgumentError(
                "expected --name of lower-case letters, digits and '-', from a letter to a letter "
                f"or digit, at most {MAX_NAME} characters, got {self.name!r}"
            )
        if _MEMORY.fullmatch(self.memory) is None:
            raise InvalidArgumentError(
                f"expected --memory as a number with Mi or Gi, such as 4Gi, got {self.memory!r}"
            )
        for text in (self.task, self.keys, *self.data, *self.settings):
            if "\0" in text:
                raise InvalidArgumentError(f"expected a text without NUL, got {text!r}")

    @property
    def mebibytes(self) -> int:
        """Memory of a role in MiB."""
        match = _MEMORY.fullmatch(self.memory)
        assert match is not None
        return int(match[1]) * _MEBIBYTES[match[2]]

    def server_words(self, options: Mapping[str, object]) -> list[str]:
        """Return the command line of a server, with further options."""
        return self._words("ps", self._servers_options(options), [])

    def worker_words(self, options: Mapping[str, object]) -> list[str]:
        """Return the command line of a worker, with further options."""
        data = [word for path in self.data for word in ("--data", path)]
        threads = [] if self.has_threads else ["--set", f"{THREADS_KEY}={self.cpus}"]
        return self._words("worker", self._workers_options(options), [*data, *threads])

    def _servers_options(self, options: Mapping[str, object]) -> dict[str, object]:
        return {
            "--num-servers": self.num_servers,
            "--settings": self.settings_file,
            "--keys": self.keys,
            "--threads": max(_MIN_SERVER_THREADS, self.cpus),
            # SIGTERM reaches all roles at once; the last save needs the servers.
            "--linger-seconds": self.grace_seconds,
            **options,
        }

    def _workers_options(self, options: Mapping[str, object]) -> dict[str, object]:
        own = {name: value for name, value in self.worker_options.items() if value is not None}
        return {
            "--num-workers": self.num_workers,
            "--settings": self.settings_file,
            "--keys": self.keys,
            "--server-timeout": f"{SERVER_SECONDS:g}",
            "--auto-resume": self.has_checkpoints,
            **own,
            **options,
        }

    def _words(self, kind: str, options: Mapping[str, object], more: Sequence[str]) -> list[str]:
        settings = [word for text in self.settings for word in ("--set", text)]
        return [PROGRAM, kind, self.task, *option_words(options), *more, *settings, "--no-hints"]

    @property
    def has_checkpoints(self) -> bool:
        """Whether the job saves, so that it can go on."""
        return self.worker_options.get("--checkpoints") is not None
