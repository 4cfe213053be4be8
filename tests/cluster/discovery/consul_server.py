"""A server that follows the published HTTP API of a Consul agent, as far as a discovery needs it.

https://developer.hashicorp.com/consul/api-docs: agent/service, agent/check, health, catalog,
session and kv, with blocking queries, TTL checks and sessions, and tokens.
"""

import base64
import contextlib
import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


def seconds_of(text):
    """A duration of Go: "10s", "250ms", "1m"."""
    for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(text)


class ConsulServer:
    """An agent with its catalog.

    Args:
        session_ttl_min: shortest time of a session, as the agent's option of this name.
        token: token that calls must have; None needs none.

    Attributes:
        address: `host:port`.
        calls: method and path of each call.
        faults: functions of (method, path), the next of which answers: (status, body), or None to
            hang up. An empty list answers as Consul.
        delay_seconds: before each answer.
        refused_hosts: hosts whose services are silently not registered.
    """

    def __init__(self, session_ttl_min=10.0, token=None):
        self.session_ttl_min, self.token = session_ttl_min, token
        self.calls, self.faults, self.delay_seconds, self.refused_hosts = [], [], 0.0, set()
        self._index, self._changed = 1, threading.Condition()
        self._services, self._sessions, self._keys = {}, {}, {}
        self._is_over = False
        agent = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                agent.handle(self)

            do_GET = do_PUT = answer  # noqa: N815

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        threads = (self._server.serve_forever, self._expire)
        self._threads = [threading.Thread(target=work, daemon=True) for work in threads]
        for thread in self._threads:
            thread.start()

    def close(self):
        self._is_over = True
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join(10)

    def forget_all(self):
        """The agent was started again and has lost its state."""
        with self._changed:
            self._services.clear()
            self._sessions.clear()
            self._keys.clear()
            self._touch()

    # Time

    def _expire(self):
        while not self._is_over:
            now = time.monotonic()
            with self._changed:
                for service in self._services.values():
                    if service["is_passing"] and now > service["until"]:
                        service["is_passing"] = False
                        self._touch()
                for number in [n for n, s in self._sessions.items() if now > s["until"]]:
                    self._end_session(number)
            time.sleep(0.02)

    def _end_session(self, number):
        del self._sessions[number]
        for key in [k for k, value in self._keys.items() if value["Session"] == number]:
            del self._keys[key]  # the behaviour "delete"
        self._touch()

    def _touch(self):
        self._index += 1
        self._changed.notify_all()

    # HTTP

    def handle(self, request):
        url = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        size = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(size)
        self.calls.append((request.command, url.path))
        time.sleep(self.delay_seconds)
        if self.faults:
            answer = self.faults.pop(0)
            if answer is None:
                request.close_connection = True
                return
            status, value = answer
        elif self.token not in (None, request.headers.get("X-Consul-Token")):
            status, value = 403, "Permission denied"
        else:
            status, value = self.answer(request.command, unquote(url.path), query, body)
        text = value if isinstance(value, str) else json.dumps(value)
        content = b"" if value is None else text.encode()
        request.send_response(status)
        request.send_header("X-Consul-Index", str(self._index))
        request.send_header("Content-Length", str(len(content)))
        with contextlib.suppress(OSError):  # the client may be gone
            request.end_headers()
            request.wfile.write(content)

    def answer(self, method, path, query, body):
        routes = {
            ("PUT", "/v1/agent/service/register"): self._register,
            ("PUT", "/v1/agent/service/deregister/"): self._deregister,
            ("PUT", "/v1/agent/check/pass/service:"): self._pass,
            ("PUT", "/v1/catalog/deregister"): self._catalog_deregister,
            ("GET", "/v1/health/service/"): self._health,
            ("PUT", "/v1/session/create"): self._create_session,
            ("PUT", "/v1/session/renew/"): self._renew_session,
            ("PUT", "/v1/session/destroy/"): self._destroy_session,
            ("PUT", "/v1/kv/"): self._put,
            ("GET", "/v1/kv/"): self._get,
        }
        for (wanted, prefix), work in routes.items():
            if method == wanted and path.startswith(prefix):
                with self._changed:
                    return work(path.removeprefix(prefix), query, body)
        return 404, f"no handler for {method} {path}"

    def _register(self, name, query, body):
        value = json.loads(body)
        ttl = seconds_of(value["Check"]["TTL"])
        if value["Address"] in self.refused_hosts:
            return 200, None
        self._touch()
        self._services[value["ID"]] = {
            "value": value,
            "ttl": ttl,
            "until": time.monotonic() + ttl,
            "is_passing": value["Check"].get("Status") == "passing",
            "order": self._index,
            "node": value.get("test-node", "here"),
        }
        return 200, None

    def add_of_other_agent(self, body, node="there"):
        """Register a service that this agent does not own."""
        with self._changed:
            self._register("", {}, json.dumps({**body, "test-node": node}))

    def _deregister(self, number, query, body):
        service = self._services.get(number)
        if service is None or service["node"] != "here":
            return 404, f'Unknown service ID "{number}". Ensure that the service ID is passed'
        del self._services[number]
        self._touch()
        return 200, None

    def _catalog_deregister(self, name, query, body):
        value = json.loads(body)
        service = self._services.get(value["ServiceID"])
        if service is not None and service["node"] == value["Node"]:
            del self._services[value["ServiceID"]]
            self._touch()
        return 200, True

    def _pass(self, number, query, body):
        service = self._services.get(number)
        if service is None:
            return 404, f'Unknown check ID "service:{number}".'
        service["until"] = time.monotonic() + service["ttl"]
        if not service["is_passing"]:
            service["is_passing"] = True
            self._touch()
        return 200, None

    def _health(self, name, query, body):
        if "index" in query:
            wait = min(seconds_of(query.get("wait", "5m")), 600)
            self._changed.wait_for(lambda: self._index > int(query["index"]), wait)
        found = [
            service
            for service in self._services.values()
            if service["value"]["Name"] == name
            and (service["is_passing"] or query.get("passing") != "true")
        ]
        return 200, [self._instance(service) for service in found]

    def _instance(self, service):
        value, status = service["value"], "passing" if service["is_passing"] else "critical"
        return {
            "Node": {"Node": service["node"], "Address": "127.0.0.1"},
            "Service": {
                "ID": value["ID"],
                "Service": value["Name"],
                "Tags": value["Tags"],
                "Address": value["Address"],
                "Port": value["Port"],
                "CreateIndex": service["order"],
            },
            "Checks": [{"CheckID": f"service:{value['ID']}", "Status": status}],
        }

    def _create_session(self, name, query, body):
        value = json.loads(body)
        ttl = seconds_of(value["TTL"])
        if not self.session_ttl_min <= ttl <= 86400:
            return 400, f"Invalid Session TTL '{value['TTL']}', must be between"
        number = str(uuid.uuid4())
        self._sessions[number] = {"ttl": ttl, "until": time.monotonic() + ttl}
        return 200, {"ID": number}

    def _renew_session(self, number, query, body):
        session = self._sessions.get(number)
        if session is None:
            return 404, f"Session id '{number}' not found"
        session["until"] = time.monotonic() + session["ttl"]
        return 200, [{"ID": number}]

    def _destroy_session(self, number, query, body):
        if number in self._sessions:
            self._end_session(number)
        return 200, True

    def _put(self, key, query, body):
        session = query["acquire"]
        if session not in self._sessions:
            return 500, f"rpc error making call: invalid session {session!r}"
        holder = self._keys.get(key)
        if holder is not None and holder["Session"] not in ("", session):
            return 200, False
        value = base64.b64encode(body).decode()
        self._keys[key] = {"Key": key, "Value": value, "Session": session}
        self._touch()
        return 200, True

    def _get(self, key, query, body):
        value = self._keys.get(key)
        return (404, None) if value is None else (200, [value])
