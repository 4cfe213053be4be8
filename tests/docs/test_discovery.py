"""The commands, options and classes of docs/discovery.md."""

import contextlib
import inspect
import json
import re
import socket
from importlib import import_module

import pytest
import typer

from monolith.cluster.discovery import ConsulServiceDiscovery, ServiceDiscovery, ZKServiceDiscovery
from monolith.cluster.discovery.uris import FORMS
from tests.cluster.discovery.consul_server import ConsulServer
from tests.cluster.discovery.zookeeper_server import ZooKeeperServer, skip_without_zookeeper
from tests.docs.pages import blocks, first_cells, first_rows, page
from tests.docs.shell import Shell

NAME = "docs/discovery.md"
PAGE = page(NAME)


@pytest.mark.dist
def test_the_page_works_from_top_to_bottom(capsys, monkeypatch, tmp_path):
    skip_without_zookeeper()
    monkeypatch.chdir(tmp_path)
    (text,) = blocks(PAGE, "json")
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        for number, each in enumerate(free):
            text = text.replace(f":{7000 + number}", f":{each.getsockname()[1]}")
    monkeypatch.setenv("TF_CONFIG", json.dumps(json.loads(text)))
    with contextlib.ExitStack() as stack:
        zookeeper, consul = (
            stack.enter_context(contextlib.closing(cls()))
            for cls in (ZooKeeperServer, ConsulServer)
        )
        hosts = {"zk1:2181": zookeeper.hosts, "127.0.0.1:8500": consul.address}
        shell = stack.enter_context(contextlib.closing(Shell(tmp_path, hosts)))
        shell.run_page(capsys, monkeypatch, NAME)
        shell.wait()


def test_the_table_has_every_uri():
    forms = first_rows(PAGE, "| discovery | URI |")
    assert [re.findall(r"`([^`]+)`", cells[1])[-1] for cells in forms] == [*FORMS]


def test_options_in_the_text_exist():
    known = {
        option
        for name in ("launch", "ps", "worker", "train")
        for parameter in typer.main.get_command(import_module(f"monolith.cli.{name}").app).params
        for option in parameter.opts
    }
    assert {*re.findall(r"--[a-z][a-z-]+", PAGE)} <= known


def test_the_seconds_are_the_defaults():
    def default(cls, name):
        return inspect.signature(cls).parameters[name].default

    assert default(ZKServiceDiscovery, "session_seconds") == 10
    assert default(ConsulServiceDiscovery, "ttl_seconds") == 60
    assert 2 * default(ConsulServiceDiscovery, "hold_seconds") + 1 == 21
    assert re.findall(r"refused after \d+ s", PAGE) == ["refused after 15 s", "refused after 21 s"]


def test_a_discovery_of_your_own_has_these_methods():
    assert ServiceDiscovery.__abstractmethods__ == {"register", "deregister", "query"}


def test_the_measured_discoveries_are_those_of_the_tests():
    names = first_cells(PAGE, "| discovery | seconds |")
    assert names == ["files", "ZooKeeper", "Consul (the server of the tests)", "TF_CONFIG"]
