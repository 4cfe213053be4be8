"""`monolith ps`, `monolith keys` and `monolith train --servers`, with real processes."""

import json
import signal
import stat
import subprocess
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import torch

from monolith.cli.ps import _next_command
from monolith.cluster.zmq import server_process
from monolith.cluster.zmq.connect import connect_servers
from monolith.cluster.zmq.curve_keys import read_keys
from monolith.table import Segment, TableConfig
from monolith.table.routing import PartitionRouting
from tests.cli.run import run
from tests.cluster.server_processes import Nursery, connect

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def monolith(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


@pytest.fixture
def keys(monolith, tmp_path):
    assert monolith("keys", "new", "job.keys").status == 0
    return tmp_path / "job.keys"


# keys


def test_new_keys_are_those_of_their_owner(keys):
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert len(read_keys(str(keys)).server_public) == 40


def test_keys_are_never_replaced(monolith, keys):
    before = keys.read_text()
    ran = monolith("keys", "new", "job.keys")
    assert (ran.status, keys.read_text()) == (2, before)
    assert "expected a new file" in ran.err


def test_a_folder_that_is_missing_is_named(monolith):
    ran = monolith("keys", "new", "none/job.keys")
    assert ran.status == 2
    assert "'none/job.keys': No such file" in ran.err


# ps


def test_a_server_says_where_it_listens(nursery):
    server = nursery.start(1, 3)
    assert server.facts["event"] == "ready"
    assert (server.facts["index"], server.facts["num_servers"]) == (1, 3)
    assert server.facts["pid"] == server.pid
    assert server.address.startswith("tcp://127.0.0.1:")


@pytest.mark.parametrize(
    ("task", "discovery", "keys", "command"),
    [
        (None, None, None, "train TASK --servers all addresses with commas between them"),
        ("task.py", "job", None, "worker task.py --servers job --num-servers 2"),
        ("task.py", "job", "k", "worker task.py --servers job --num-servers 2 --keys k"),
        ("task.py", "tf-config:", None, "worker task.py --servers tf-config:"),
    ],
)
def test_a_server_names_the_command_of_its_clients(task, discovery, keys, command):
    facts = {"address": "tcp://127.0.0.1:7000", "num_servers": 2}
    assert _next_command(facts, task, discovery, keys) == f"monolith {command}"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--index", "1"], "expected --index below --num-servers, got 1 of 1"),
        (["--bind", "0.0.0.0:0"], "expected keys for an address that other machines can reach"),
        (["--bind", "nowhere"], "expected an address as host:port"),
        (["--bind", "192.0.2.1:7000", "--insecure"], "expected to listen at tcp://192.0.2.1:7000"),
        (["--keys", "none"], "expected a file with keys, got none (none)"),
        (["--metrics-port", "70000"], "a port from 0 to 65535"),
        (["--discovery", "etcd://a:1/b"], "expected a folder or one of file:DIR, zk://HOST:PORT"),
        (
            ["--discovery", "./x", "--bind", "0.0.0.0:0", "--insecure"],
            "expected an address that other processes can connect to, got tcp://0.0.0.0:",
        ),
    ],
)
def test_a_wrong_option_is_an_error_at_the_start(monolith, options, text):
    ran = monolith("ps", *options)
    assert ran.status == 2
    assert text in ran.err


TF_CONFIG = {
    "cluster": {"ps": ["127.0.0.1:1", "127.0.0.1:2"], "worker": ["127.0.0.1:3"]},
    "task": {"type": "ps", "index": 1},
}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--index", "0"], "expected --index 1 as tf-config: says, got --index 0; leave"),
        (["--num-servers", "3"], "expected --num-servers 2 as tf-config: says, got"),
        (["--bind", "0.0.0.0:3"], "expected --bind with the port of 127.0.0.1:2 as tf-config:"),
        (["--bind", "0.0.0.0:2"], "expected keys for an address that other machines can reach"),
        (["--index", "1", "--num-servers", "2", "--bind", "nowhere:2:2"], "an address as host"),
    ],
)
def test_an_option_that_contradicts_the_variable_is_refused(monolith, monkeypatch, options, text):
    monkeypatch.setenv("TF_CONFIG", json.dumps(TF_CONFIG))
    ran = monolith("ps", "--discovery", "tf-config:", *options)
    assert ran.status == 2
    assert text in ran.err


def test_a_variable_of_another_role_names_its_command(monolith, monkeypatch):
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({**TF_CONFIG, "task": task}))
    ran = monolith("ps", "--discovery", "tf-config:")
    assert ran.status == 2
    assert "that tf-config: describes, got worker 0; run `monolith worker`" in ran.err


def test_a_discovery_that_is_away_is_a_failure(monolith, monkeypatch):
    monkeypatch.setattr("monolith.cluster.discovery.retries.time.sleep", lambda seconds: None)
    ran = monolith("ps", "--discovery", "consul://127.0.0.1:1/job")
    assert ran.status == 1
    assert "expected an answer of the agent at 127.0.0.1:1" in ran.err


def test_an_address_in_use_is_an_error_at_the_start(monolith, nursery):
    server = nursery.start()
    ran = monolith("ps", "--bind", server.address)
    assert ran.status == 2
    assert f"listen at {server.address}" in ran.err


def test_two_servers_of_one_folder_have_different_indices(monolith, nursery, tmp_path):
    nursery.start(0, 2, options=["--discovery", tmp_path / "servers"])
    ran = monolith("ps", "--num-servers", "2", "--discovery", tmp_path / "servers")
    assert ran.status == 2
    assert "expected that no process is ps 0, got one that is alive" in ran.err


def test_a_server_reports_its_sizes_at_intervals():
    from tests.suites.table_base import keys

    words = ["ps", "--json", "--status-seconds", "0.05"]
    server = subprocess.Popen(
        [sys.executable, "-m", "monolith.cli.main", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        lines = map(json.loads, server.stdout)
        with connect_servers([next(lines)["address"]]) as servers:
            table = servers.table(TableConfig("user", Segment(1)), PartitionRouting(1))
            table.lookup_or_insert(keys(1, 2, 3))
            status = next(line for line in lines if line["rows"])
        server.terminate()
        assert [line["event"] for line in lines if line["event"] != "status"] == ["ended"]
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait(60)
        server.stdout.close()
    assert status.pop("bytes") > 0
    assert status == {"event": "status", "index": 0, "rows": 3, "update_calls": 0}


@pytest.mark.parametrize("options", [["--status-seconds", "1"], ["--json", "--status-seconds", 0]])
def test_reports_are_json_at_intervals_above_zero(monolith, options):
    ran = monolith("ps", *options)
    assert ran.status == 2
    assert "expected --status-seconds above 0 with --json, got" in ran.err


class Ended:
    """A server that ends the program when it begins."""

    def __init__(self, options, dense):
        pass

    def __enter__(self):
        raise SystemExit(7)

    def __exit__(self, *error):
        pass


@pytest.mark.parametrize(("options", "expected"), [((), [1]), (("--call-threads", "3"), [3])])
def test_a_call_has_one_thread_unless_an_option_says_more(monolith, monkeypatch, options, expected):
    numbers = []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(server_process, "ServerProcess", Ended)
    assert monolith("ps", *options).status == 7
    assert numbers == expected


def health(server):
    with urlopen(f"http://127.0.0.1:{server.facts['metrics_port']}/health") as answer:
        return json.load(answer)


def test_the_pages_show_health_and_metrics(nursery):
    from tests.suites.table_base import keys

    server = nursery.start(options=["--metrics-port", 0])
    with connect([server]) as servers:
        table = servers.table(TableConfig("user", Segment(1)), PartitionRouting(1))
        table.lookup_or_insert(keys(1, 2, 3))
        shown = health(server)
    assert shown["is_ready"] is True
    assert shown["tables"]["user"]["rows"] == 3
    assert shown["messages"]["greetings"] == 1
    with urlopen(f"http://127.0.0.1:{server.facts['metrics_port']}/metrics") as answer:
        assert answer.status == 200


def test_other_machines_may_see_the_pages(nursery):
    server = nursery.start(options=["--metrics-port", 0, "--metrics-host", "127.0.0.9"])
    url = f"http://127.0.0.9:{server.facts['metrics_port']}/health"
    with urlopen(url) as answer:
        assert json.load(answer)["is_ready"] is True


def test_an_address_of_pages_needs_a_port(monolith):
    ran = monolith("ps", "--metrics-host", "0.0.0.0")
    assert ran.status == 2
    assert "expected --metrics-port N with --metrics-host 0.0.0.0, got none" in ran.err


def test_a_server_that_lingers_serves_its_clients_to_their_end(nursery):
    from tests.suites.table_base import keys

    server = nursery.start(options=["--linger-seconds", 60])
    with connect([server]) as servers:
        table = servers.table(TableConfig("user", Segment(1)), PartitionRouting(1))
        server.signal(signal.SIGTERM)
        with pytest.raises(AssertionError, match="is alive after 1 seconds"):
            server.wait(1)
        table.lookup_or_insert(keys(1, 2, 3))
        assert len(table) == 3
    server.wait(30)


def test_a_server_lingers_no_longer_than_it_may(nursery):
    server = nursery.start(options=["--linger-seconds", 0.2])
    with connect([server]):
        server.signal(signal.SIGTERM)
        server.wait(30)


def test_an_endpoint_without_health_has_no_such_page():
    from monolith.observe import PrometheusSink

    with PrometheusSink(0) as sink, pytest.raises(HTTPError, match="404"):
        urlopen(f"http://127.0.0.1:{sink.port}/health")


def test_health_of_a_server_that_ends_is_503():
    from monolith.observe import PrometheusSink

    with (
        PrometheusSink(0, health=lambda: {"is_ready": False}) as sink,
        pytest.raises(HTTPError, match="503"),
    ):
        urlopen(f"http://127.0.0.1:{sink.port}/health")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server(nursery, number):
    server = nursery.start()
    server.signal(number)
    server.wait()


# train


@pytest.fixture
def task(monolith):
    assert monolith("new", "ranker.py").status == 0
    return "ranker.py"


STEPS = ("--set", "train.steps=2")


def test_a_run_on_servers_has_the_losses_of_a_local_run(monolith, nursery, task, keys):
    options = ["--keys", keys]
    servers = nursery.start_all(2, options=options)
    addresses = ",".join(server.address for server in servers)
    runs = [
        monolith("train", task, *STEPS, "--json", *more)
        for more in ((), ("--servers", addresses, *options))
    ]
    ends = [json.loads(ran.out.splitlines()[-1]) for ran in runs]
    assert [ran.status for ran in runs] == [0, 0]
    assert ends[0]["figures"]["loss"] == ends[1]["figures"]["loss"]


def test_a_folder_of_addresses_finds_the_servers(monolith, nursery, task, tmp_path):
    nursery.start_all(2, options=["--discovery", tmp_path / "servers"])
    ran = monolith("train", task, *STEPS, "--servers", "./servers", "--num-servers", 2)
    assert ran.status == 0
    assert "connected to 2 servers (./servers)" in ran.err


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["--keys", "x"], 2, "expected addresses or a folder as --servers with --keys, got None"),
        (["--servers", "2", "--transfer", "float16"], 2, "with --transfer, got 2"),
        (["--servers", "./servers"], 2, "expected --num-servers N with the folder"),
        (["--servers", "a:1", "--num-servers", "2"], 2, "expected a folder as --servers with"),
        (["--servers", "a:1,a:1"], 2, "one or more different servers, got tcp://a:1, tcp://a:1"),
        (["--servers", ","], 2, "one or more different servers, got none"),
        (["--servers", "a"], 2, "expected an address as host:port"),
        (["--servers", "127.0.0.1:1", "--transfer", "int8"], 2, "expected transfer as one of"),
        (["--servers", "127.0.0.1:1", "--server-timeout", "0.3"], 1, "is away since"),
        (["--servers", "./no", "--num-servers", "1", "--server-timeout", "0.3"], 1, "got none yet"),
        (["--servers", "no", "--num-servers", "1", "--server-timeout", "0.3"], 1, "got none yet"),
    ],
)
def test_wrong_servers_are_an_error_before_the_run(monolith, task, options, status, text):
    ran = monolith("train", task, *options)
    assert (ran.status, text in ran.err) == (status, True), ran.err
