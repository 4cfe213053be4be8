import threading

import pytest

from monolith.native_training import net_utils

ADDRS = [f"localhost:{port}" for port in range(1, 6)]


def connector(dead):
    """Connects or times out; of the five the last comes back first."""
    is_back = {port: threading.Event() for port in range(1, 7)}
    is_back[6].set()

    def connect(host, port, timeout):
        assert is_back[port + 1].wait(timeout=60)
        is_back[port].set()
        if f"{host}:{port}" in dead:
            raise TimeoutError("timed out")

    return connect


@pytest.mark.req("TS-NET-T1")
@pytest.mark.parametrize("dead", [[], ADDRS[1:3], ADDRS], ids=len)
def test_basic(dead, capsys):
    checker = net_utils.NodeAliveChecker(ADDRS, connect=connector(dead))
    assert checker.get_addrs() == ADDRS
    assert sorted(checker.get_dead_nodes()) == dead
    assert sorted(checker.get_alive_nodes() + checker.get_dead_nodes()) == ADDRS
    assert checker.all_nodes_alive() == (not dead)
    lines = [f"cannot connect to {addr}, because timed out" for addr in dead]
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.req("TS-NET-T2")
@pytest.mark.parametrize(
    ("ip", "expected"),
    [("127.0.0.1", "127.0.0.1:10"), ("localhost", "localhost:10"), ("::1", "[::1]:10")],
)
def test_concat_ip_and_port(ip, expected):
    assert net_utils.concat_ip_and_port(ip, 10) == expected


@pytest.mark.req("TS-NET-T3")
def test_get_local_server_addr():
    assert net_utils.get_local_server_addr(10).endswith(":10")
