"""Describe a job as objects of Kubernetes: a StatefulSet of servers and a Job of workers."""

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from monolith.errors import InvalidArgumentError
from monolith.launch.manifests.cluster_job import ClusterJob

PORT, METRICS_PORT = 7000, 9090
FILES, SECRET, KEYS = "/etc/monolith", "/run/monolith/secret", "/run/monolith/keys"
"""Folders of a container: the ConfigMap, the Secret, and the copy of its keys."""

KEYS_FILE = "job.keys"
_WRONG_USAGE_STATUS = 2
_MAX_FILES_BYTES = 1_000_000  # of a ConfigMap, which may have 1 MiB
_LABEL = "app.kubernetes.io"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_FILE_NAME = re.compile(r"[-._A-Za-z0-9]+")
_PATH = re.compile(r"/[^\s:\0]+")


@dataclass(frozen=True)
class KubernetesPlace:
    """Where and from what a job runs in Kubernetes.

    Args:
        image: Image of the containers, with `monolith` in its path and a program `install`.
        namespace: Namespace of the objects; None leaves it to kubectl.
        secret: Secret with the keys of the job in its file `job.keys`.
        volumes: Claim of a persistent volume -> folder of the containers.

    Raises:
        InvalidArgumentError: A value is none that Kubernetes would take.
    """

    image: str
    secret: str
    namespace: str | None = None
    volumes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if _IMAGE.fullmatch(self.image) is None:
            raise InvalidArgumentError(f"expected --image as name:tag, got {self.image!r}")
        if self.namespace is not None and _NAMESPACE.fullmatch(self.namespace) is None:
            raise InvalidArgumentError(
                f"expected --namespace of lower-case letters, digits and '-', at most 63, got "
                f"{self.namespace!r}"
            )
        _check_subdomain("--keys", self.secret)
        for claim, path in self.volumes.items():
            _check_subdomain("--volume", claim)
            if _PATH.fullmatch(path) is None or posixpath.normpath(path) != path:
                raise InvalidArgumentError(
                    f"expected --volume CLAIM=/PATH, got {claim}={path}; the path is absolute"
                )
            if is_below(path, "/run/monolith") or is_below(path, FILES):
                raise InvalidArgumentError(f"expected another path than {path} of --volume")
        if len({*self.volumes.values()}) < len(self.volumes):
            raise InvalidArgumentError("expected different paths of --volume, got one twice")


def is_below(path: str, folder: str) -> bool:
    """Whether an absolute path is a folder or lies in it."""
    return posixpath.normpath(path) == folder or path.startswith(f"{folder}/")


def kubernetes_objects(job: ClusterJob, place: KubernetesPlace) -> list[dict[str, Any]]:
    """Return the objects of a job, in the order in which Kubernetes needs them.

    Args:
        job: The job; its task and settings are files of this machine, which go into a ConfigMap.
        place: Where the job runs.

    Raises:
        InvalidArgumentError: A file is too large, or is no text.
        OSError: A file cannot be read.
    """
    files: dict[str, str] = {}
    if job.task.partition(".py:")[0].removesuffix(".py") != job.task:  # a file, maybe with a class
        path, _, name = job.task.partition(".py:")
        path = f"{path}.py" if name else path
        task, files = _in_config_map(path, files)
        job = replace(job, task=f"{task}:{name}" if name else task)
    if job.settings_file is not None:
        settings_file, files = _in_config_map(job.settings_file, files)
        job = replace(job, settings_file=settings_file)
    job = replace(job, keys=f"{KEYS}/{KEYS_FILE}")
    objects = [_service(job, place), _servers(job, place, files), _workers(job, place, files)]
    if not files:
        return objects
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(job, place, "files"),
        "data": files,
    }
    return [config, *objects]


def _in_config_map(path: str, files: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the path of a file in the containers, and the files of the ConfigMap with it."""
    name = os.path.basename(path)
    if _FILE_NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"expected the name of a file of letters, digits, '-', '_' and '.', got {name!r}"
        )
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"expected a file of UTF-8, got {error} ({path})") from error
    size = sum(len(content.encode()) for content in (*files.values(), text))
    if size > _MAX_FILES_BYTES:
        raise InvalidArgumentError(
            f"expected files of at most {_MAX_FILES_BYTES:,} bytes for a ConfigMap, got {size:,} "
            f"({path}); put the task into the image and name it as module.CLASS"
        )
    return f"{FILES}/{name}", {**files, name: text}


def _service(job: ClusterJob, place: KubernetesPlace) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, place, "ps"),
        "spec": {
            "clusterIP": "None",
            # Workers keep looking for a server while its pod starts.
            "publishNotReadyAddresses": True,
            "selector": _labels(job, "ps"),
            "ports": [{"name": "ps", "port": PORT}, {"name": "metrics", "port": METRICS_PORT}],
        },
    }


def _servers(job: ClusterJob, place: KubernetesPlace, files: Mapping[str, str]) -> dict[str, Any]:
    options = {
        "--bind": f"0.0.0.0:{PORT}",
        "--metrics-host": "0.0.0.0",
        "--metrics-port": METRICS_PORT,
    }
    health = {"httpGet": {"path": "/health", "port": "metrics"}}
    container = {
        **_container(job, place, files, job.server_words(options)),
        "ports": [
            {"name": "ps", "containerPort": PORT},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ],
        "startupProbe": {**health, "periodSeconds": 2, "failureThreshold": 150},
        "readinessProbe": {**health, "periodSeconds": 5},
        "livenessProbe": {**health, "periodSeconds": 10, "failureThreshold": 6},
    }
    container["env"] = [_index("apps.kubernetes.io/pod-index")]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(job, place, "ps"),
        "spec": {
            "replicas": job.num_servers,
            "serviceName": f"{job.name}-ps",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": _labels(job, "ps")},
            "template": _pod(job, place, files, "ps", container),
        },
    }


def _workers(job: ClusterJob, place: KubernetesPlace, files: Mapping[str, str]) -> dict[str, Any]:
    servers = [f"{job.name}-ps-{i}.{job.name}-ps:{PORT}" for i in range(job.num_servers)]
    words = job.worker_words({"--servers": ",".join(servers)})
    container = _container(job, place, files, words)
    container["env"] = [_index("batch.kubernetes.io/job-completion-index")]
    pod = _pod(job, place, files, "worker", container)
    # A pod that failed is replaced, and keeps its log.
    pod["spec"] = {"restartPolicy": "Never", **pod["spec"]}
    on_usage = {"containerName": "monolith", "operator": "In", "values": [_WRONG_USAGE_STATUS]}
    on_disruption = [{"type": "DisruptionTarget", "status": "True"}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(job, place, "worker"),
        "spec": {
            "completionMode": "Indexed",
            "completions": job.num_workers,
            "parallelism": job.num_workers,
            "backoffLimitPerIndex": job.restarts,
            "maxFailedIndexes": 0,
            # Worker 0 is the chief, which ends the job.
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": on_usage},
                    {"action": "Ignore", "onPodConditions": on_disruption},
                ]
            },
            "template": pod,
        },
    }


def _container(
    job: ClusterJob, place: KubernetesPlace, files: Mapping[str, str], words: list[str]
) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [{"name": "keys", "mountPath": KEYS, "readOnly": True}]
    if files:
        mounts.append({"name": "files", "mountPath": FILES, "readOnly": True})
    mounts += [
        {"name": f"volume-{i}", "mountPath": path} for i, path in enumerate(place.volumes.values())
    ]
    size = {"cpu": job.cpus, "memory": job.memory}
    return {
        "name": "monolith",
        "image": place.image,
        "command": words[:1],
        # `$` begins a variable there, and `$$` is a dollar; only INDEX is a variable of ours.
        "args": [*(word.replace("$", "$$") for word in words[1:]), "--index", "$(INDEX)"],
        "env": [],
        "resources": {"requests": size, "limits": {"memory": job.memory}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": mounts,
    }


def _pod(
    job: ClusterJob,
    place: KubernetesPlace,
    files: Mapping[str, str],
    part: str,
    container: dict[str, Any],
) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "secret", "secret": {"secretName": place.secret}},
        {"name": "keys", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    if files:
        volumes.append({"name": "files", "configMap": {"name": f"{job.name}-files"}})
    volumes += [
        {"name": f"volume-{i}", "persistentVolumeClaim": {"claimName": claim}}
        for i, claim in enumerate(place.volumes)
    ]
    # A file of a Secret belongs to root; the roles want keys that only their own user can read.
    copy_keys = {
        "name": "keys",
        "image": place.image,
        "command": ["install", "-m", "600", f"{SECRET}/{KEYS_FILE}", f"{KEYS}/{KEYS_FILE}"],
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [
            {"name": "secret", "mountPath": SECRET, "readOnly": True},
            {"name": "keys", "mountPath": KEYS},
        ],
    }
    return {
        "metadata": {"labels": _labels(job, part)},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": job.grace_seconds,
            "initContainers": [copy_keys],
            "containers": [container],
            "volumes": volumes,
        },
    }


def _index(label: str) -> dict[str, Any]:
    path = f"metadata.labels['{label}']"
    return {"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _metadata(job: ClusterJob, place: KubernetesPlace, part: str) -> dict[str, Any]:
    space = {} if place.namespace is None else {"namespace": place.namespace}
    return {"name": f"{job.name}-{part}", **space, "labels": _labels(job, part)}


def _labels(job: ClusterJob, part: str) -> dict[str, str]:
    return {
        f"{_LABEL}/name": "monolith",
        f"{_LABEL}/instance": job.name,
        f"{_LABEL}/component": part,
    }


def _check_subdomain(option: str, name: str) -> None:
    if _SUBDOMAIN.fullmatch(name) is None or len(name) > 253:
        raise InvalidArgumentError(
            f"expected {option} with a name of lower-case letters, digits, '-' and '.', got "
            f"{name!r}"
        )
