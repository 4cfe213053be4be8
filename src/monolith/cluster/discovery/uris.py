"""`open_discovery`: the discovery that a URI names."""

import os
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import NamedTuple

from monolith.cluster.discovery.consul import ConsulServiceDiscovery
from monolith.cluster.discovery.consul_agent import ConsulAgent
from monolith.cluster.discovery.host_files import HostServiceDiscovery
from monolith.cluster.discovery.mlp import MLPServiceDiscovery
from monolith.cluster.discovery.mlp_env import MLPEnv
from monolith.cluster.discovery.service_discovery import DiscoveryError, Place, ServiceDiscovery
from monolith.cluster.discovery.tf_config import (
    TF_CONFIG,
    TfConfigServiceDiscovery,
    parse_tf_config,
)
from monolith.cluster.discovery.zookeeper import ZKServiceDiscovery
from monolith.environment import variables
from monolith.errors import InvalidArgumentError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_HOSTS = re.compile(r"//([^/\s]+)/([A-Za-z0-9._-]+)/?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::([0-9]{1,5}))?")


class Uri(NamedTuple):
    """A URI whose scheme is known.

    Args:
        text: The URI.
        scheme: Scheme in small letters; "file" for a folder alone.
        rest: What follows the colon.
    """

    text: str
    scheme: str
    rest: str

    @property
    def is_folder(self) -> bool:
        """Whether all processes need one file system."""
        return self.scheme == "file"


def check_uri(text: str) -> Uri:
    """Return the parts of a URI: `file:DIR` or a folder alone, or another scheme of `FORMS`.

    Raises:
        InvalidArgumentError: The scheme is none of these.
    """
    match = _SCHEME.fullmatch(text)
    if match is None and text.strip():
        return Uri(text, "file", text)
    scheme, rest = (match[1].lower(), match[2]) if match is not None else ("", "")
    if scheme not in SCHEMES:
        raise InvalidArgumentError(
            f"[open_discovery] expected a folder or one of {', '.join(FORMS)}, got {text!r}"
        )
    return Uri(text, scheme, rest)


def open_discovery(uri: str) -> ServiceDiscovery:
    """Return the discovery of a URI; see `check_uri`.

    Raises:
        InvalidArgumentError: The scheme is not known, or a part is missing.
        FailedPreconditionError: A package that the discovery needs is not installed.
        DiscoveryError: The discovery does not answer.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     open_discovery(f"file:{folder}").query("ps")
        {}
    """
    parts = check_uri(uri)
    return SCHEMES[parts.scheme](parts)


def place_of(uri: str) -> Place | None:
    """Return the part of this process that the discovery of a URI fixes; None for other schemes.

    Raises:
        InvalidArgumentError: The scheme fixes the part, but the environment does not say it.
    """
    return open_discovery(uri).place if is_fixed(uri) else None


def is_fixed(uri: str) -> bool:
    """Whether the discovery of a URI fixes the part of this process in the job.

    Example:
        >>> is_fixed("tf-config:"), is_fixed("consul://127.0.0.1:8500/job")
        (True, False)
    """
    return uri.partition(":")[0].lower() in FIXED


def is_discovery(text: str) -> bool:
    """Whether a text names a discovery by its scheme, so that it is no address of a server.

    Example:
        >>> is_discovery("zk://a:2181/job"), is_discovery("tcp://a:7000"), is_discovery("a:7000")
        (True, False, False)
    """
    match = _SCHEME.fullmatch(text)
    if match is None:
        return False
    scheme = match[1].lower()
    is_address = scheme in ("tcp", "ipc")
    return scheme in SCHEMES or (match[2].startswith("//") and not is_address)


def _files(uri: Uri) -> ServiceDiscovery:
    path = uri.rest[2:] if uri.rest.startswith("///") else uri.rest
    if not path or path.startswith("//"):
        raise InvalidArgumentError(f"[open_discovery] expected file:DIR, got {uri.text!r}")
    return HostServiceDiscovery(os.path.expanduser(path))


def _zookeeper(uri: Uri) -> ServiceDiscovery:
    hosts, job = _parts(uri, "zk://HOST:PORT[,HOST:PORT]/JOB")
    servers = ",".join(_host(uri, host, 2181) for host in hosts.split(","))
    try:
        return ZKServiceDiscovery(job, servers)
    except Exception as error:
        if type(error).__name__ != "KazooTimeoutError":  # a class of the extra
            raise
        raise DiscoveryError(
            f"[open_discovery] expected ZooKeeper to answer, got none at {servers} ({error})"
        ) from error


def _consul(uri: Uri) -> ServiceDiscovery:
    host, job = _parts(uri, "consul://HOST:PORT/JOB")
    return ConsulServiceDiscovery(job, agent=ConsulAgent(_host(uri, host, 8500)))


def _tf_config(uri: Uri) -> ServiceDiscovery:
    text = variables(TF_CONFIG).get(TF_CONFIG)
    if uri.rest or not text:
        raise InvalidArgumentError(
            f"[open_discovery] expected tf-config: with the variable {TF_CONFIG}, got "
            f"{uri.text!r} and {'no variable' if not text else 'further text'}"
        )
    return TfConfigServiceDiscovery(parse_tf_config(text))


def _mlp(uri: Uri) -> ServiceDiscovery:
    env = MLPEnv()
    if uri.rest or not env.available:
        raise InvalidArgumentError(
            f"[open_discovery] expected mlp: with the variables MLP_<ROLE>_NUM, got {uri.text!r} "
            f"and {'no such variables' if not env.available else 'further text'}"
        )
    return MLPServiceDiscovery(env, port_seconds=None)  # who connects waits itself


def _parts(uri: Uri, form: str) -> tuple[str, str]:
    match = _HOSTS.fullmatch(uri.rest)
    if match is None:
        raise InvalidArgumentError(f"[open_discovery] expected {form}, got {uri.text!r}")
    return match[1], match[2]


def _host(uri: Uri, text: str, port: int) -> str:
    match = _HOST.fullmatch(text)
    if match is None or int(match[2] or port) >= 1 << 16:
        raise InvalidArgumentError(
            f"[open_discovery] expected HOST:PORT, got {text!r} in {uri.text!r}"
        )
    return f"{match[1]}:{match[2] or port}"


# A discovery joins by a line here, one in FORMS and, if it has a place, a word in FIXED.
SCHEMES: MappingProxyType[str, Callable[[Uri], ServiceDiscovery]] = MappingProxyType(
    {
        "file": _files,
        "zk": _zookeeper,
        "consul": _consul,
        "tf-config": _tf_config,
        "mlp": _mlp,
    }
)
"""Scheme -> function that opens the discovery of a URI."""

FORMS = (
    "file:DIR",
    "zk://HOST:PORT[,HOST:PORT]/JOB",
    "consul://HOST:PORT/JOB",
    "tf-config:",
    "mlp:",
)
"""How a URI of each scheme is written."""

FIXED = ("tf-config", "mlp")
"""Schemes of discoveries that fix the part of this process in the job."""
