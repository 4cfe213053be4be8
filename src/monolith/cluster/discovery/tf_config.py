"""`TfConfigServiceDiscovery`: fixed addresses of a job in the form of the variable TF_CONFIG."""

import json
from collections.abc import Mapping
from typing import Any

from monolith.cluster.discovery.service_discovery import Place, ServiceDiscovery
from monolith.errors import InvalidArgumentError

TF_CONFIG = "TF_CONFIG"
"""Variable with the fixed addresses of a job."""

_TASK_TYPES = ("chief", "worker", "ps")


class TfConfigServiceDiscovery(ServiceDiscovery):
    """Addresses that a scheduler has fixed for all processes of a job.

    The chief is worker 0, so that the number of a task of type `worker` is one more where the job
    has a chief. Nothing is registered, and there is nothing to hold or to wait for.

    Args:
        tf_config: The parsed variable.

    Attributes:
        server_type: Kind of this process: "ps" or "worker".
        index: Number of this process among those of its kind.
        addr: Address of this process.

    Raises:
        InvalidArgumentError: The value describes no process of a job.

    Example:
        >>> cluster = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
        >>> task = {"type": "worker", "index": 0}
        >>> discovery = TfConfigServiceDiscovery({"cluster": cluster, "task": task})
        >>> discovery.query("worker"), discovery.index
        ({0: 'a:1', 1: 'b:1'}, 1)
    """

    def __init__(self, tf_config: Mapping[str, Any]) -> None:
        self._cluster, kind, index = _checked(tf_config)
        self.addr = self._cluster[kind][index]
        has_chief = bool(self._cluster.get("chief"))
        self.server_type = "worker" if kind == "chief" else kind
        self.index = index + int(has_chief and kind == "worker")

    @property
    def place(self) -> Place:
        """Part of this process in the job."""
        sizes = {name: len(self.query(name)) for name in ("ps", "worker")}
        return Place(self.server_type, self.index, self.addr, sizes)

    def environment_of(self, name: str, index: int) -> dict[str, str]:
        """Return the variable TF_CONFIG of another process of the job."""
        return {TF_CONFIG: json.dumps(with_task({"cluster": self._cluster}, name, index))}

    def register(self, name: str, index: int, addr: str) -> None:
        """Do nothing: the addresses are fixed."""

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Do nothing: the addresses are fixed."""

    def query(self, name: str) -> dict[int, str]:
        """Return the addresses of "ps" or "worker" by index; worker 0 is the chief.

        Raises:
            ValueError: Another name.
        """
        if name == "ps":
            addresses = self._cluster.get("ps", [])
        elif name == "worker":
            addresses = [*self._cluster.get("chief", []), *self._cluster.get("worker", [])]
        else:
            raise ValueError("name must be ps/worker")
        return dict(enumerate(addresses))


def with_task(tf_config: Mapping[str, Any], name: str, index: int) -> dict[str, Any]:
    """Return the variable of another process of the job.

    Args:
        tf_config: The variable of one process.
        name: Kind of the process: "ps" or "worker"; worker 0 is the chief if the job has one.
        index: Number of the process among those of its kind.

    Example:
        >>> with_task({"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}, "worker", 1)["task"]
        {'type': 'worker', 'index': 0}
    """
    if name == "worker" and tf_config["cluster"].get("chief"):
        name, index = ("worker", index - 1) if index else ("chief", 0)
    return {**tf_config, "task": {"type": name, "index": index}}


def parse_tf_config(text: str) -> dict[str, Any]:
    """Return the value of the variable TF_CONFIG.

    Raises:
        InvalidArgumentError: The text is no JSON object.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidArgumentError(
            f"[TF_CONFIG] expected a JSON object with 'cluster' and 'task', got {text[:80]!r}"
        )
    return value


def _checked(tf_config: Mapping[str, Any]) -> tuple[dict[str, list[str]], str, int]:
    cluster, task = tf_config.get("cluster"), tf_config.get("task")
    if not isinstance(cluster, Mapping) or not isinstance(task, Mapping):
        raise InvalidArgumentError(
            "[TF_CONFIG] expected the objects 'cluster' and 'task', got the keys "
            f"{', '.join(sorted(map(str, tf_config))) or 'none'}"
        )
    addresses = {}
    for kind, values in cluster.items():
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise InvalidArgumentError(
                f"[TF_CONFIG] expected a list of addresses as cluster[{kind!r}], got {values!r}"
            )
        addresses[str(kind)] = values
    kind, index = task.get("type"), task.get("index", 0)
    if isinstance(index, str) and index.isdecimal():
        index = int(index)
    num_tasks = len(addresses.get(kind, ())) if kind in _TASK_TYPES else 0
    is_number = isinstance(index, int) and not isinstance(index, bool)
    if not is_number or not 0 <= index < num_tasks:
        known = {name: len(addresses[name]) for name in _TASK_TYPES if name in addresses}
        raise InvalidArgumentError(
            f"[TF_CONFIG] expected a task of the cluster, which has {known}, got type {kind!r} and "
            f"index {index!r}"
        )
    return addresses, str(kind), index
