import http.client
import math
import re
import socket
import struct
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from monolith.observe import PrometheusSink


@pytest.fixture
def sink():
    with PrometheusSink(0) as sink:
        yield sink


def ask(sink, path="/metrics", method="GET", host="127.0.0.1"):
    connection = http.client.HTTPConnection(host, sink.port, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def families(sink, **options):
    """The metrics by name, as the client library reads them."""
    text = ask(sink, **options)[2]
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(family):
    return [(sample.name, sample.labels, sample.value) for sample in family.samples]


def test_a_counter_has_the_suffix_total(sink):
    sink.count("requests", 2, {"ps": "0"})
    sink.count("requests", 3, {"ps": "0"})
    sink.count("requests", 1, {"ps": "1"})
    family = families(sink)["monolith_requests"]
    assert (family.type, family.documentation) == ("counter", "Total of requests.")
    assert samples(family) == [
        ("monolith_requests_total", {"ps": "0"}, 5.0),
        ("monolith_requests_total", {"ps": "1"}, 1.0),
    ]


def test_a_gauge_has_its_last_value(sink):
    sink.gauge("monolith.rows", 1, {})
    sink.gauge("monolith.rows", 0.1, {})
    sink.flush(70)
    metrics = families(sink)
    assert metrics["monolith_rows"].type == "gauge"
    assert samples(metrics["monolith_rows"]) == [("monolith_rows", {}, 0.1)]
    assert samples(metrics["monolith_step"]) == [("monolith_step", {}, 70.0)]


def test_times_are_a_summary_in_seconds(sink):
    for number in range(1, 101):
        sink.time("lookup", number * 1e6, {"ps": "0"})
    family = families(sink)["monolith_lookup_seconds"]
    assert family.type == "summary"
    assert samples(family) == [
        ("monolith_lookup_seconds", {"ps": "0", "quantile": "0.5"}, 50.0),
        ("monolith_lookup_seconds", {"ps": "0", "quantile": "0.9"}, 90.0),
        ("monolith_lookup_seconds", {"ps": "0", "quantile": "0.99"}, 99.0),
        ("monolith_lookup_seconds_sum", {"ps": "0"}, 5050.0),
        ("monolith_lookup_seconds_count", {"ps": "0"}, 100.0),
    ]


def test_sum_and_count_are_those_of_all_times(sink):
    for number in range(5000):
        sink.time("lookup", 1e6 * (number < 904), {})
    values = {name: value for name, _, value in samples(families(sink)["monolith_lookup_seconds"])}
    assert values["monolith_lookup_seconds_count"] == 5000
    assert values["monolith_lookup_seconds_sum"] == 904
    assert values["monolith_lookup_seconds"] == 0  # of the last 4096


def test_events_are_counted_by_name(sink):
    for name in ("save", "save", "stop"):
        sink.event(name, {"step": 1})
    family = families(sink)["monolith_events"]
    assert [(labels["name"], value) for _, labels, value in samples(family)] == [
        ("save", 2.0),
        ("stop", 1.0),
    ]


def test_the_values_of_labels_are_escaped(sink):
    path = 'C:\\new\n"data"'
    sink.gauge("rows", 1, {"path": path})
    assert samples(families(sink)["monolith_rows"])[0][1] == {"path": path}


def test_names_that_prometheus_does_not_allow_are_changed(sink):
    sink.gauge("train/rows.user:1\n\\x", 1, {"a b": "1", "a.b": "2", "1st": "3", "__x": "4"})
    sink.time("step", 1, {"quantile": "5"})
    metrics = families(sink)
    family = metrics["monolith_train_rows_user_1__x"]
    assert family.documentation == "Last value of train/rows.user:1\n\\x."
    assert family.samples[0].labels == {"a_b": "1", "a_b_": "2", "tag_1st": "3", "tag___x": "4"}
    assert metrics["monolith_step_seconds"].samples[0].labels == {
        "tag_quantile": "5",
        "quantile": "0.5",
    }


def test_no_two_metrics_have_one_name(sink):
    for name in ("a.b", "a-b", "requests_total", "lookup_seconds_sum"):
        sink.gauge(name, 1, {})
    for name in ("requests", "requests_total"):
        sink.count(name, 2, {})
    sink.time("lookup", 3e6, {})
    text = ask(sink)[2]
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(set(names)) == len(names) == 7
    assert {"monolith_a_b", "monolith_a_b_", "monolith_requests__total"} < set(names)
    assert "monolith_lookup__seconds_sum 3.0" in text


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e300])
def test_every_number_can_be_read(sink, value):
    sink.gauge("loss", value, {})
    assert samples(families(sink)["monolith_loss"])[0][2] == pytest.approx(value, nan_ok=True)


def test_the_type_of_the_answer_is_that_of_the_text_format(sink):
    sink.gauge("rows", 1, {})
    status, headers, text = ask(sink)
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert int(headers["Content-Length"]) == len(text)


def test_head_answers_without_a_body(sink):
    sink.gauge("rows", 1, {})
    status, headers, text = ask(sink, method="HEAD")
    assert (status, text) == (200, "")
    assert int(headers["Content-Length"]) > 0


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/", 200, '<a href="/metrics">'),
        ("GET", "/metrics?name=a", 200, "monolith_rows 1.0"),
        ("GET", "/other", 404, "at /metrics"),
        ("POST", "/metrics", 501, "Unsupported method"),
    ],
)
def test_other_requests_are_answered_or_refused(sink, method, path, status, text):
    sink.gauge("rows", 1, {})
    answer = ask(sink, path, method)
    assert answer[0] == status
    assert text in answer[2]


def test_a_port_in_use_is_an_error_at_once(sink):
    with pytest.raises(ValueError, match=rf"got port {sink.port} of 127.0.0.1 \(Address already"):
        PrometheusSink(sink.port)


def test_a_port_out_of_range_is_an_error():
    with pytest.raises(ValueError, match="expected a port from 0 to 65535, got 65536"):
        PrometheusSink(65536)


@pytest.mark.parametrize("host", ["no.such.invalid", "a" * 64])
def test_a_name_of_no_machine_is_an_error(host):
    with pytest.raises(ValueError, match=rf"got port 0 of {re.escape(host)} \(.+\); choose"):
        PrometheusSink(0, host)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_the_host_may_be_an_address_of_version_6():
    try:
        sink = PrometheusSink(0, host="::1")
    except ValueError:
        pytest.skip("no IPv6 loopback")
    with sink:
        sink.gauge("rows", 1, {})
        assert "monolith_rows" in families(sink, host="::1")


def test_a_closed_sink_frees_the_port():
    sink = PrometheusSink(0)
    sink.close()
    sink.close()
    with pytest.raises(ConnectionRefusedError):
        ask(sink)
    PrometheusSink(sink.port).close()


def test_a_scrape_is_whole_while_another_thread_writes(sink):
    is_over = threading.Event()
    sink.count("steps", 1, {})

    def write():
        number = 0
        while not is_over.is_set():
            number += 1
            sink.count("steps", 1, {})
            sink.time("step", 1e6, {"thread": str(number % 50)})
            sink.gauge(f"gauge_{number % 200}", number, {})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        totals = [samples(families(sink)["monolith_steps"])[0][2] for _ in range(20)]
    finally:
        is_over.set()
        thread.join()
    assert totals == sorted(totals)
    assert totals[0] < totals[-1]


def test_a_value_that_is_no_number_is_logged_and_the_endpoint_goes_on(sink, caplog):
    sink.gauge("rows", "many", {})
    with pytest.raises(http.client.RemoteDisconnected):
        ask(sink)
    assert "could not convert string to float: 'many'" in caplog.text
    sink.gauge("rows", 1, {})
    assert "monolith_rows" in families(sink)


def test_a_client_that_goes_away_does_not_end_the_endpoint(sink, caplog):
    for number in range(5000):
        sink.gauge(f"gauge_{number}", 1, {})
    with socket.create_connection(("127.0.0.1", sink.port)) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        client.recv(10)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets
    assert len(families(sink)) == 5000
    assert caplog.messages == []
