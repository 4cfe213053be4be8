"""`open_discovery`: the discovery that a URI names."""

import os
import re
from collections.abc import Callable
from types import MappingProxyType

from monolith.cluster.discovery.consul import ConsulServiceDiscovery
from monolith.cluster.discovery.consul_agent import ConsulAgent
from monolith.cluster.discovery.host_files import HostServiceDiscovery
from monolith.cluster.discovery.mlp import MLPServiceDiscovery
from monolith.cluster.discovery.mlp_env import MLPEnv
from monolith.cluster.discovery.service_discovery import ServiceDiscovery
from monolith.cluster.discovery.tf_config import TfConfigServiceDiscovery, parse_tf_config
from monolith.cluster.discovery.zookeeper import ZKServiceDiscovery
from monolith.environment import variables
from monolith.errors import InvalidArgumentError, UnavailableError

TF_CONFIG = "TF_CONFIG"
"""Variable with the fixed addresses of a job."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_HOSTS = re.compile(r"//([^/\s]+)/([A-Za-z0-9._-]+)/?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::([0-9]{1,5}))?")


def open_discovery(uri: str) -> ServiceDiscovery:
    """Return the discovery of a URI: `file:DIR`, or one of the schemes below; a folder alone, too.

    Raises:
        InvalidArgumentError: The URI is none of these, or lacks a part.
        FailedPreconditionError: A package that the discovery needs is not installed.
        UnavailableError: The discovery does not answer.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     open_discovery(f"file:{folder}").query("ps")
        {}
    """
    match = _SCHEME.fullmatch(uri)
    if match is None and uri.strip():
        return HostServiceDiscovery(os.path.expanduser(uri))
    scheme, rest = (match[1].lower(), match[2]) if match is not None else ("", "")
    if scheme not in SCHEMES:
        raise InvalidArgumentError(
            f"[open_discovery] expected a folder or one of {', '.join(FORMS)}, got {uri!r}"
        )
    return SCHEMES[scheme](uri, rest)


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


def _files(uri: str, rest: str) -> ServiceDiscovery:
    if not rest:
        raise InvalidArgumentError(f"[open_discovery] expected file:DIR, got {uri!r}")
    path = rest[2:] if rest.startswith("///") else rest
    return HostServiceDiscovery(os.path.expanduser(path))


def _zookeeper(uri: str, rest: str) -> ServiceDiscovery:
    hosts, job = _parts(uri, rest, "zk://HOST:PORT[,HOST:PORT]/JOB")
    servers = ",".join(_host(uri, host, 2181) for host in hosts.split(","))
    try:
        return ZKServiceDiscovery(job, servers)
    except Exception as error:
        if type(error).__name__ != "KazooTimeoutError":  # a class of the extra
            raise
        raise UnavailableError(
            f"[open_discovery] expected ZooKeeper to answer, got none at {servers} ({error})"
        ) from error


def _consul(uri: str, rest: str) -> ServiceDiscovery:
    host, job = _parts(uri, rest, "consul://HOST:PORT/JOB")
    return ConsulServiceDiscovery(job, agent=ConsulAgent(_host(uri, host, 8500)))


def _tf_config(uri: str, rest: str) -> ServiceDiscovery:
    text = variables(TF_CONFIG).get(TF_CONFIG)
    if rest or not text:
        raise InvalidArgumentError(
            f"[open_discovery] expected tf-config: with the variable {TF_CONFIG}, got {uri!r} and "
            f"{'no variable' if not text else 'further text'}"
        )
    return TfConfigServiceDiscovery(parse_tf_config(text))


def _mlp(uri: str, rest: str) -> ServiceDiscovery:
    env = MLPEnv()
    if rest or not env.available:
        raise InvalidArgumentError(
            f"[open_discovery] expected mlp: with the variables MLP_<ROLE>_NUM, got {uri!r} and "
            f"{'no such variables' if not env.available else 'further text'}"
        )
    return MLPServiceDiscovery(env)


def _parts(uri: str, rest: str, form: str) -> tuple[str, str]:
    match = _HOSTS.fullmatch(rest)
    if match is None:
        raise InvalidArgumentError(f"[open_discovery] expected {form}, got {uri!r}")
    return match[1], match[2]


def _host(uri: str, text: str, port: int) -> str:
    match = _HOST.fullmatch(text)
    if match is None or int(match[2] or port) >= 1 << 16:
        raise InvalidArgumentError(f"[open_discovery] expected HOST:PORT, got {text!r} in {uri!r}")
    return f"{match[1]}:{match[2] or port}"


# A discovery joins by a line here and one in FORMS.
SCHEMES: MappingProxyType[str, Callable[[str, str], ServiceDiscovery]] = MappingProxyType(
    {
        "file": _files,
        "zk": _zookeeper,
        "consul": _consul,
        "tf-config": _tf_config,
        "mlp": _mlp,
    }
)
"""Scheme -> function of the URI and what follows the colon."""

FORMS = (
    "file:DIR",
    "zk://HOST:PORT[,HOST:PORT]/JOB",
    "consul://HOST:PORT/JOB",
    "tf-config:",
    "mlp:",
)
"""How a URI of each scheme is written."""
