"""Print the job of `monolith launch --print` for Kubernetes or Slurm."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolith.cli.console import fail, say
from monolith.errors import InvalidArgumentError
from monolith.launch.manifests import (
    ClusterJob,
    KubernetesPlace,
    kubernetes_objects,
    slurm_script,
    yaml_text,
)
from monolith.launch.manifests.kubernetes import KEYS_FILE, is_below
from monolith.util.stores import local_path

KUBERNETES, SLURM = "kubernetes", "slurm"
DEFAULT_GRACE_SECONDS = 120.0
"""Seconds of the last save under a scheduler, unless `--grace-seconds` says otherwise."""

_PRINT = "--print"


@dataclass(frozen=True)
class ManifestOptions:
    """Options of `monolith launch` that belong to `--print`.

    Args:
        kind: "kubernetes", "slurm", or None for a job that runs here.
        name: Name of the job; None takes that of the task.
        image: Image of the containers.
        namespace: Namespace of the objects.
        volumes: Claims and folders, as CLAIM=/PATH.
        keys: Secret or file of the keys; None takes one with the name of the job.
        cpus: Cores of a role.
        memory: Memory of a role.
    """

    kind: str | None
    name: str | None
    image: str | None
    namespace: str | None
    volumes: Sequence[str]
    keys: str | None
    cpus: int | None
    memory: str | None

    def check(self, local: Mapping[str, object]) -> None:
        """Refuse options that do not fit each other.

        Args:
            local: Values of options that only a job on this machine has, by their names; those
                that are None or false are not set.
        """
        places = {"--image": self.image, "--namespace": self.namespace, "--volume": self.volumes}
        alone = {
            **places,
            "--name": self.name,
            "--keys": self.keys,
            "--cpus": self.cpus,
            "--memory": self.memory,
        }
        if self.kind is None:
            for option in (option for option, value in alone.items() if value):
                fail(f"expected {_PRINT} {KUBERNETES} or {SLURM} with {option}, got none", 2)
            return
        others = places if self.kind == SLURM else {}
        for option in (option for option, value in {**local, **others}.items() if value):
            fail(f"expected no {option} with {_PRINT} {self.kind}, got one", status=2)
        if self.kind == KUBERNETES and self.image is None:
            fail(f"expected --image NAME:TAG with {_PRINT} {KUBERNETES}, got none", status=2)

    def print_job(self, task: str, run: str | None, **fields: Any) -> None:
        """Print the job on stdout, and the next commands on stderr.

        Wrong values end the program with status 2.

        Args:
            task: Task of the job.
            run: Folder of the addresses, for Slurm.
            fields: Fields of `ClusterJob` that other options give.
        """
        if self.cpus is not None:
            fields["cpus"] = self.cpus
        if self.memory is not None:
            fields["memory"] = self.memory
        try:
            job = ClusterJob(**{"task": task, **self._names(task), **fields})
            text = self._kubernetes(job) if self.kind == KUBERNETES else slurm_script(job, run)
        except (InvalidArgumentError, OSError) as error:
            fail(str(error), status=2)
        sys.stdout.write(text)
        if not job.has_checkpoints:
            say("without --checkpoints the job cannot go on after a server dies")
        say(f"next: {self._next(job)}")

    def _kubernetes(self, job: ClusterJob) -> str:
        pairs = [text.partition("=")[::2] for text in self.volumes]
        volumes = dict(pairs)
        if len(volumes) < len(pairs):
            raise InvalidArgumentError("expected different claims of --volume, got one twice")
        assert self.image is not None
        place = KubernetesPlace(self.image, job.keys, self.namespace, volumes)
        checkpoints = job.worker_options.get("--checkpoints")
        saves = None if checkpoints is None else local_path(str(checkpoints))
        if saves is not None and not any(is_below(saves, path) for path in volumes.values()):
            raise InvalidArgumentError(
                f"expected --checkpoints in a store, or in the folder of a --volume CLAIM=/PATH, "
                f"got {saves!r}, which ends with its container"
            )
        return yaml_text(kubernetes_objects(job, place))

    def _next(self, job: ClusterJob) -> str:
        if self.kind == SLURM:
            keys = shlex.quote(job.keys)
            return f"monolith keys new {keys}, and sbatch with what was printed"
        space = "" if self.namespace is None else f" --namespace {self.namespace}"
        return (
            f"monolith keys new {KEYS_FILE}; kubectl create secret generic {job.keys}{space} "
            f"--from-file={KEYS_FILE}; and kubectl apply -f - with what was printed"
        )

    def _names(self, task: str) -> dict[str, Any]:
        """Return the names of the job and of its keys, by default those of the task."""
        file, _, _ = task.partition(".py:")
        stem = Path(file).name.removesuffix(".py").rpartition(".")[2]
        name = self.name or stem.lower().replace("_", "-")
        keys = f"{name}-keys" if self.kind == KUBERNETES else f"{name}.keys"
        return {"name": name, "keys": self.keys or keys}
