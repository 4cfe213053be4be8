"""An HTTP endpoint of the measurements for Prometheus."""

import json
import logging
import math
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from monolith.observe.buffered_sink import BufferedSink, Series, Times, quantile

_log = logging.getLogger(__name__)

_PREFIX = "monolith_"
_QUANTILES = (0.5, 0.9, 0.99)
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HOME = b'<html><body>Metrics of Monolith: <a href="/metrics">/metrics</a></body></html>\n'
_TIMEOUT_SECONDS = 10.0  # of a client
_POLL_SECONDS = 0.1  # longest wait of `close` for the thread

_Value = TypeVar("_Value")


class PrometheusSink(BufferedSink):
    """Answers `GET /metrics` with the current measurements, in Prometheus' text format.

    Names begin with `monolith_`; characters that Prometheus does not allow become `_`.

    | measurement | metric |
    |---|---|
    | `count("requests", ...)` | counter `monolith_requests_total` |
    | `gauge("rows", ...)` | gauge `monolith_rows` |
    | `time("lookup", ...)` | summary `monolith_lookup_seconds` with `_sum` and `_count` |
    | `event("save", ...)` | counter `monolith_events_total{name="save"}` |
    | `flush(step)` | gauge `monolith_step` |

    Quantiles are those of the last 4096 times of a series. A daemon thread serves requests.

    Args:
        port: Port, or 0 for a free one that the system chooses.
        host: Address or name of this machine; others can connect if it is not a loopback address.
        health: Returns what `GET /health` answers as JSON, with status 503 unless its `is_ready` is
            true; None has no such page.

    Attributes:
        port: Port that the sink listens on.

    Raises:
        ValueError: The sink cannot listen there, for instance because the port is in use.

    Example:
        >>> from urllib.request import urlopen
        >>> with PrometheusSink(0) as sink:
        ...     sink.gauge("rows", 7, {"table": "user"})
        ...     with urlopen(f"http://127.0.0.1:{sink.port}/metrics") as answer:
        ...         print(answer.read().decode().splitlines()[-1])
        monolith_rows{table="user"} 7.0
    """

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        *,
        health: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        self._server = _listen(host, port, self._text)
        self._server.health = health
        self.port: int = self._server.server_address[1]
        self._close_lock = threading.Lock()
        self._is_closed = False
        serve = threading.Thread(
            target=self._server.serve_forever,
            args=(_POLL_SECONDS,),
            name="monolith-prometheus",
            daemon=True,
        )
        serve.start()

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Count the event; Prometheus has no place for its fields."""
        self.count("events", 1, {"name": name})

    def flush(self, step: int) -> None:
        """Set the gauge `step`."""
        self.gauge("step", step, {})

    def close(self) -> None:
        """Stop listening."""
        with self._close_lock:
            if not self._is_closed:
                self._server.shutdown()
                self._server.server_close()
            self._is_closed = True

    def _text(self) -> str:
        with self._lock:
            gauges, counters = self._gauges.copy(), self._counters.copy()
            times = {series: _snapshot(times) for series, times in self._times.items()}
        return "".join(f"{line}\n" for line in _lines(gauges, counters, times))


_Snapshot = tuple[int, float, list[float]]  # number of times, their total, the last ones


def _snapshot(times: Times) -> _Snapshot:
    return times.num_times, times.total, list(times.recent)


def _lines(
    gauges: Mapping[Series, float],
    counters: Mapping[Series, float],
    times: Mapping[Series, _Snapshot],
) -> Iterator[str]:
    used: set[str] = set()
    for name, values in _by_name(gauges):
        family = _unused(_metric_name(name), ("",), used)
        yield from _header(family, "gauge", f"Last value of {name}.")
        for tags, value in values:
            yield _sample(family, tags, value)
    for name, values in _by_name(counters):
        family = _unused(_metric_name(name).removesuffix("_total"), ("_total",), used) + "_total"
        yield from _header(family, "counter", f"Total of {name}.")
        for tags, value in values:
            yield _sample(family, tags, value)
    suffixes = ("_seconds", "_seconds_sum", "_seconds_count")
    for name, snapshots in _by_name(times):
        family = _unused(_metric_name(name), suffixes, used) + "_seconds"
        yield from _header(family, "summary", f"Times of {name}.")
        for tags, (num_times, total, recent) in snapshots:
            ordered = sorted(recent)
            for share in _QUANTILES:
                seconds = quantile(ordered, share) / 1e6
                yield _sample(family, {**tags, "quantile": str(share)}, seconds)
            yield _sample(f"{family}_sum", tags, total / 1e6)
            yield _sample(f"{family}_count", tags, num_times)


def _by_name(
    values: Mapping[Series, _Value],
) -> Iterable[tuple[str, list[tuple[dict[str, str], _Value]]]]:
    """Return the names, sorted, with the tags and value of each of their series."""
    groups: dict[str, list[tuple[dict[str, str], _Value]]] = {}
    for (name, tags), value in values.items():
        groups.setdefault(name, []).append((_labels(tags), value))
    return sorted(groups.items())


def _metric_name(name: str) -> str:
    return _PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", name).removeprefix(_PREFIX)


def _unused(name: str, suffixes: Iterable[str], used: set[str]) -> str:
    """Return the name, with `_` after it until it is new with each suffix; mark them as used."""
    while not used.isdisjoint(name + suffix for suffix in suffixes):
        name += "_"
    used.update(name + suffix for suffix in suffixes)
    return name


def _labels(tags: Iterable[tuple[str, str]]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for key, value in tags:
        name = re.sub(r"[^a-zA-Z0-9_]", "_", key)
        if not re.match(r"[a-zA-Z]|_[^_]", name) or name == "quantile":  # reserved
            name = f"tag_{name}"
        while name in labels:
            name += "_"
        labels[name] = value
    return labels


def _header(family: str, kind: str, text: str) -> Iterator[str]:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {family} {escaped}"
    yield f"# TYPE {family} {kind}"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    if not labels:
        return f"{name} {_number(value)}"
    text = ",".join(f'{label}="{_escape(value)}"' for label, value in labels.items())
    return f"{name}{{{text}}} {_number(value)}"


def _escape(value: str) -> str:
    return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    number = float(value)
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return "NaN" if math.isnan(number) else repr(number)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, family: int, address: Any, text: Callable[[], str]) -> None:
        self.address_family = family
        self.text = text
        self.health: Callable[[], Mapping[str, Any]] | None = None
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without the lookup of the machine's name, which may take seconds."""
        super(ThreadingHTTPServer, self).server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error, unless a client broke off."""
        if not isinstance(sys.exc_info()[1], OSError):
            _log.exception("[PrometheusSink] a request of %s failed", client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "monolith", ""
    timeout = _TIMEOUT_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(_CONTENT_TYPE, self.server.text().encode(errors="backslashreplace"))
        elif path == "/health" and self.server.health is not None:
            value = self.server.health()
            body = json.dumps(value, indent=1).encode() + b"\n"
            self._answer("application/json", body, 200 if value["is_ready"] else 503)
        elif path == "/":
            self._answer("text/html; charset=utf-8", _HOME)
        else:
            self.send_error(404, "Not found; the metrics are at /metrics")

    def do_HEAD(self) -> None:
        self.do_GET()  # `_answer` leaves out the body

    def _answer(self, content_type: str, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class's name
        """Log nothing: requests come every few seconds."""


def _listen(host: str, port: int, text: Callable[[], str]) -> _Server:
    if not 0 <= port <= 65535:
        raise ValueError(f"[PrometheusSink] expected a port from 0 to 65535, got {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return _Server(family, address, text)
    except (OSError, UnicodeError) as error:  # a name that is none is a UnicodeError
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"[PrometheusSink] expected a free port of this machine, got port {port} of {host} "
            f"({why}); choose another port, or 0 for one that the system chooses"
        ) from error
