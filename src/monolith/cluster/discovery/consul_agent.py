"""`ConsulAgent`: the calls to the HTTP API of a Consul agent that a discovery needs."""

import base64
import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from monolith.cluster.discovery.service_discovery import DiscoveryError
from monolith.environment import variables
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError

_PORT = 8500
_ADDRESS, _TOKEN = "CONSUL_HTTP_ADDR", "CONSUL_HTTP_TOKEN"
_MAX_BODY_BYTES = 16 << 20
_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class ConsulEntry:
    """A process that is registered as an instance of a service.

    Args:
        name: Kind of the process, such as "ps".
        index: Number of the process among those of its kind.
        host: Host of the process.
        port: Port of the process.
        order: Number that grows with the time of the registration.
        node: Machine of the agent that knows the process; empty before it is registered.
    """

    name: str
    index: int
    host: str
    port: int
    order: int = 0
    node: str = ""

    @property
    def address(self) -> str:
        """The address as `host:port`."""
        return f"{self.host}:{self.port}"

    def id_of(self, service: str) -> str:
        """Return the id of the instance of a service."""
        return f"{service}:{self.name}:{self.index}:{self.address}"


class ConsulAgent:
    """Calls an agent of Consul over HTTP; each call has a limit of time.

    Args:
        address: Address of the agent as `host:port`; None takes `CONSUL_HTTP_ADDR`, or
            127.0.0.1:8500.
        token: Token of the calls; None takes `CONSUL_HTTP_TOKEN`, or sends none.
        timeout_seconds: Limit of a call.
    """

    def __init__(
        self, address: str | None = None, *, token: str | None = None, timeout_seconds: float = 5.0
    ) -> None:
        known = variables(_ADDRESS, _TOKEN)
        text = address or known.get(_ADDRESS) or f"127.0.0.1:{_PORT}"
        self.address = text.removeprefix("http://").rstrip("/")
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or "/" in self.address or int(port) >= 1 << 16:
            raise InvalidArgumentError(
                f"[ConsulAgent] expected the address of an agent as host:port, got {text!r}"
            )
        self._host, self._port = host.strip("[]"), int(port)
        self._token = token or known.get(_TOKEN)
        self._timeout_seconds = timeout_seconds

    # Services

    def register(self, service: str, entry: ConsulEntry, ttl_seconds: float) -> None:
        """Register a process, which is healthy until `ttl_seconds` after its last sign of life."""
        tags = {"index": entry.index, "name": entry.name, "ip": entry.host}
        ttl = f"{ttl_seconds:g}s"
        check = {"TTL": ttl, "Status": "passing", "DeregisterCriticalServiceAfter": "10m"}
        body = {
            "ID": entry.id_of(service),
            "Name": service,
            "Address": entry.host,
            "Port": entry.port,
            "Tags": [f"{tag}:{value}" for tag, value in tags.items()],
            "Check": check,
        }
        self._call("PUT", "/v1/agent/service/register", body)

    def deregister(self, service: str, entry: ConsulEntry) -> None:
        """Remove a process; one of another agent is removed from the catalog."""
        number = entry.id_of(service)
        path = f"/v1/agent/service/deregister/{quote(number, safe='')}"
        is_known = self._call("PUT", path, missing=False) is not False
        if not is_known and entry.node:
            body = {"Node": entry.node, "ServiceID": number}
            self._call("PUT", "/v1/catalog/deregister", body)

    def refresh(self, service: str, entry: ConsulEntry) -> bool:
        """Give a sign of life of a process; return whether the agent knows the process."""
        path = f"/v1/agent/check/pass/service:{quote(entry.id_of(service), safe='')}"
        return self._call("PUT", path, missing=False) is not False

    def lookup(self, service: str) -> list[ConsulEntry]:
        """Return the healthy processes of a service."""
        return self.lookup_since(service, 0, 0.0)[0]

    def lookup_since(
        self, service: str, position: int, wait_seconds: float
    ) -> tuple[list[ConsulEntry], int]:
        """Return the healthy processes of a service, and the position of the answer.

        With a position the agent answers when something has changed since, or after the time.
        """
        query: dict[str, Any] = {"passing": "true"}
        if position:
            query |= {"index": position, "wait": f"{max(1, int(wait_seconds * 1000))}ms"}
        path = f"/v1/health/service/{quote(service, safe='')}?{urlencode(query)}"
        answer = self._request("GET", path, None, wait_seconds if position else 0.0)
        instances = answer.value()
        if not isinstance(instances, list):
            raise self.malformed(path, instances)
        entries = [entry for item in instances if (entry := _entry_of(item)) is not None]
        return entries, answer.position

    # Locks

    def create_session(self, name: str, ttl_seconds: float) -> str:
        """Return a session, which ends some time after `ttl_seconds` without a renewal."""
        body = {
            "Name": name,
            "TTL": f"{ttl_seconds:g}s",
            "Behavior": "delete",
            "LockDelay": "0s",
        }
        value = self._call("PUT", "/v1/session/create", body)
        if not isinstance(value, dict) or not isinstance(value.get("ID"), str):
            raise self.malformed("/v1/session/create", value)
        return str(value["ID"])

    def renew_session(self, session: str) -> bool:
        """Whether the session is alive; if so, its time begins anew."""
        return self._call("PUT", f"/v1/session/renew/{session}", missing=False) is not False

    def destroy_session(self, session: str) -> None:
        """End a session, and remove the keys that it has."""
        self._call("PUT", f"/v1/session/destroy/{session}")

    def acquire(self, key: str, session: str, text: str) -> bool:
        """Whether the session has the key now; if so, the key has the text.

        Raises:
            NotFoundError: The session has ended.
        """
        path = f"/v1/kv/{quote(key)}?{urlencode({'acquire': session})}"
        return self._call("PUT", path, text) is True

    def text_of(self, key: str) -> str:
        """Return the text of a key; empty without the key."""
        path = f"/v1/kv/{quote(key)}"
        value = self._call("GET", path, missing=[])
        try:
            return base64.b64decode(value[0]["Value"]).decode(errors="backslashreplace")
        except (IndexError, KeyError, TypeError, ValueError):
            return ""

    # HTTP

    def _call(self, method: str, path: str, body: Any = None, *, missing: Any = ...) -> Any:
        """Return the JSON value of an answer; `missing` in place of an error 404."""
        answer = self._request(method, path, body, 0.0, may_miss=missing is not ...)
        return missing if answer.status == 404 else answer.value()

    def _request(
        self, method: str, path: str, body: Any, more_seconds: float, *, may_miss: bool = False
    ) -> "_Answer":
        headers = {} if self._token is None else {"X-Consul-Token": self._token}
        content = body if isinstance(body, str) else None if body is None else json.dumps(body)
        seconds = self._timeout_seconds + more_seconds
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        try:
            connection.request(method, path, content and content.encode(), headers)
            response = connection.getresponse()
            position = response.headers.get("X-Consul-Index", "")
            answer = _Answer(self, path, response.status, self._body(response, seconds), position)
        except (OSError, http.client.HTTPException) as error:
            raise DiscoveryError(
                f"[ConsulAgent] expected an answer of the agent at {self.address} to {method} "
                f"{path} within {seconds:g} s, got {error or type(error).__name__}"
            ) from error
        finally:
            connection.close()
        if answer.status == 200 or (answer.status == 404 and may_miss):
            return answer
        text = (
            f"[ConsulAgent] expected status 200 of the agent at {self.address} to {method} {path}, "
            f"got {answer.status}: {answer.text[:200].strip() or 'no text'}"
        )
        if may_miss and answer.status == 500 and "Unknown" in answer.text:  # older agents
            return _Answer(self, path, 404, b"", "")
        if answer.status == 500 and "invalid session" in answer.text:
            raise NotFoundError(text)
        if answer.status in (401, 403):
            raise FailedPreconditionError(f"{text}; set {_TOKEN} to a token with these rights")
        if answer.status >= 500 or answer.status == 429:
            raise DiscoveryError(text)
        raise InvalidArgumentError(text)

    def _body(self, response: http.client.HTTPResponse, seconds: float) -> bytes:
        """Read an answer of limited size in limited time."""
        blocks, size, end = [], 0, time.monotonic() + seconds
        while block := response.read1(_BLOCK_BYTES):
            blocks.append(block)
            size += len(block)
            if size > _MAX_BODY_BYTES or time.monotonic() > end:
                raise TimeoutError(f"{size} bytes and no end after {seconds:g} s")
        return b"".join(blocks)

    def malformed(self, path: str, value: Any) -> DiscoveryError:
        """Return the error of an answer that is not as the API says."""
        return DiscoveryError(
            f"[ConsulAgent] expected the answer of Consul's API to {path} from the agent at "
            f"{self.address}, got {str(value)[:80]!r}"
        )


@dataclass(frozen=True)
class _Answer:
    agent: ConsulAgent
    path: str
    status: int
    body: bytes
    position_text: str

    @property
    def text(self) -> str:
        return self.body.decode(errors="backslashreplace")

    @property
    def position(self) -> int:
        """Position of the answer, for the next one; 0 without."""
        return int(self.position_text) if self.position_text.isdecimal() else 0

    def value(self) -> Any:
        """Return the JSON value; None of an empty answer."""
        if not self.body.strip():
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise self.agent.malformed(self.path, self.text) from None


def _entry_of(item: Any) -> ConsulEntry | None:
    """Return the process of an instance of a service; None for what has other tags."""
    service = item.get("Service") if isinstance(item, Mapping) else None
    if not isinstance(service, Mapping):
        return None
    tags = service.get("Tags")
    words = [str(tag).partition(":") for tag in tags] if isinstance(tags, list) else []
    known = {tag: value for tag, _, value in words}
    node = item.get("Node")
    machine = node if isinstance(node, Mapping) else {}
    host = known.get("ip") or service.get("Address") or machine.get("Address")
    name, index, port = known.get("name"), known.get("index", ""), service.get("Port")
    order = service.get("CreateIndex")
    if not name or not index.isdecimal() or not isinstance(port, int) or not host:
        return None
    order = order if isinstance(order, int) else 0
    return ConsulEntry(name, int(index), str(host), port, order, str(machine.get("Node", "")))
