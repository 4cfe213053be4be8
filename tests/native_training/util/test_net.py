import socket
import threading

import pytest

from monolith.native_training.util import net
from monolith.native_training.util.net import NodeAliveChecker


@pytest.fixture
def address(request):
    """Gives `host:port` of this host, where somebody listens or not; the port stays taken."""

    def make(*, listens, host="127.0.0.1", family=socket.AF_INET):
        server = socket.socket(family)
        request.addfinalizer(server.close)
        server.bind((host, 0))
        if listens:
            server.listen()
        return net.concat_ip_and_port(host, server.getsockname()[1])

    return make


@pytest.mark.req("NT-NET-T1")
def test_a_listening_port_is_alive_and_a_closed_one_is_dead(address, capsys):
    alive, dead = address(listens=True), address(listens=False)
    checker = NodeAliveChecker([alive, dead])
    assert (checker.get_alive_nodes(), checker.get_dead_nodes()) == ([alive], [dead])
    assert not checker.all_nodes_alive()
    assert capsys.readouterr().out.startswith(f"cannot connect to {dead}, because ")


@pytest.mark.req("NT-NET-T1")
def test_an_ipv6_address_stands_in_brackets(address):
    try:
        alive = address(listens=True, host="::1", family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert NodeAliveChecker([alive]).all_nodes_alive()


@pytest.mark.req("NT-NET-T2")
@pytest.mark.parametrize("bad", ["foo", "1.2.3.4:x", "::1:80", ":80", "[]:80", "a:-1", "a:", ""])
def test_a_malformed_address_is_dead(bad, capsys):
    checker = NodeAliveChecker([bad, "good:1"], connect=lambda host, port, timeout: None)
    assert (checker.get_dead_nodes(), checker.get_alive_nodes()) == ([bad], ["good:1"])
    expected = f"cannot connect to {bad}, because [NodeAliveChecker] expected host:port"
    assert capsys.readouterr().out.startswith(expected)


def test_a_port_beyond_the_range_is_dead():
    assert NodeAliveChecker(["127.0.0.1:70000"]).get_dead_nodes() == ["127.0.0.1:70000"]


def test_the_connector_gets_host_port_and_timeout():
    seen = []
    addrs = ["a:1", "[::1]:2", "10.0.0.1:3"]
    NodeAliveChecker(addrs, timeout=7, num_thread=1, connect=lambda *args: seen.append(args))
    assert seen == [("a", 1, 7), ("::1", 2, 7), ("10.0.0.1", 3, 7)]


def test_as_many_addresses_are_checked_at_once_as_there_are_threads():
    together = threading.Barrier(3, timeout=60)
    addrs = ["a:1", "b:1", "c:1"]
    checker = NodeAliveChecker(addrs, num_thread=3, connect=lambda *args: together.wait())
    assert checker.all_nodes_alive()


def test_no_addresses_are_all_alive():
    assert NodeAliveChecker([]).all_nodes_alive()


@pytest.mark.parametrize(("timeout", "num_thread"), [(0, 1), (1, 0)])
def test_a_wrong_option_is_refused(timeout, num_thread):
    with pytest.raises(ValueError, match=rf"num_thread > 0, got {timeout} and {num_thread}$"):
        NodeAliveChecker([], timeout, num_thread)


@pytest.mark.req("NT-NET-T3")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("::1", True),
        ("2001:db8::7", True),
        ("127.0.0.1", False),
        ("localhost", False),
        ("", False),
        ("[::1]", False),
    ],
)
def test_only_an_ipv6_literal_is_an_ipv6_address(text, expected):
    assert net.is_ipv6_address(text) is expected


def test_a_number_is_no_ipv6_address():
    assert net.is_ipv6_address(1) is False


@pytest.mark.req("NT-NET-T3")
def test_brackets_are_for_ipv6_only():
    ips = ["10.0.0.1", "host", "2001:db8::7"]
    formatted = [net.concat_ip_and_port(ip, 80) for ip in ips]
    assert formatted == ["10.0.0.1:80", "host:80", "[2001:db8::7]:80"]


def resolver(monkeypatch, addresses):
    """Lets the resolver give these addresses by family; a family without one is an error."""

    def getaddrinfo(name, port, family=socket.AF_UNSPEC):
        if family not in addresses:
            raise socket.gaierror(f"no address for {name}")
        return [(family, 0, 0, "", (address, 0)) for address in addresses[family]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_the_first_address_of_the_host_is_ours(monkeypatch):
    resolver(monkeypatch, {socket.AF_UNSPEC: ["10.0.0.1", "10.0.0.2"]})
    assert (net.get_local_ip(), net.is_ipv4_supported()) == ("10.0.0.1", True)
    assert net.get_local_server_addr(80) == "10.0.0.1:80"


def test_the_address_is_that_of_the_name_of_the_host(monkeypatch):
    found = {"box": [(socket.AF_INET, 0, 0, "", ("10.0.0.3", 0))]}
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: found[name])
    assert net.get_local_ip() == "10.0.0.3"


def test_a_resolver_error_leads_to_ipv6(monkeypatch):
    resolver(monkeypatch, {socket.AF_INET6: ["2001:db8::7"]})
    assert (net.get_local_ip(), net.is_ipv4_supported()) == ("2001:db8::7", False)
    assert net.get_local_server_addr(80) == "[2001:db8::7]:80"


@pytest.mark.parametrize(
    ("system", "name"), [("Linux", "box"), ("Windows", "box"), ("Darwin", "box.local")]
)
def test_the_local_host_is_resolved_as_its_system_announces_it(monkeypatch, system, name):
    monkeypatch.setattr(net.platform, "system", lambda: system)
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(socket, "gethostbyname", lambda asked: f"address of {asked}")
    assert net.get_local_host() == f"address of {name}"


def test_the_families_have_their_names():
    assert (net.AddressFamily.IPV4, net.AddressFamily.IPV6) == ("ipv4", "ipv6")


def test_a_class_may_replace_the_check_of_an_address(capsys):
    class EvenPorts(NodeAliveChecker):
        def _ping(self, addr):
            if addr.endswith("2"):
                self._alive.add(addr)
            else:
                self._dead[addr] = OSError("odd")

    checker = EvenPorts(["a:1", "b:2"])
    assert (checker.get_alive_nodes(), checker.get_dead_nodes()) == (["b:2"], ["a:1"])
    assert capsys.readouterr().out == "cannot connect to a:1, because odd\n"


def test_an_address_whose_check_raises_is_dead(capsys):
    class Broken(NodeAliveChecker):
        def _ping(self, addr):
            raise RuntimeError("broken")

    checker = Broken(["a:1", "b:2"], num_thread=1)
    assert sorted(checker.get_dead_nodes()) == ["a:1", "b:2"]
    assert capsys.readouterr().out.count("because broken") == 2
