import pytest

from monolith.cluster.zmq.addresses import check_address, is_local, is_wildcard, numeric
from monolith.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", "tcp://127.0.0.1:80"),
        (" ps-3.job:7000 ", "tcp://ps-3.job:7000"),
        ("tcp://[::1]:7000", "tcp://[::1]:7000"),
        ("ipc:///run/ps-0", "ipc:///run/ps-0"),
    ],
)
def test_an_address_gets_its_scheme(text, address):
    assert check_address("[x]", text) == address


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", "host:0", "host:65536", "udp://h:1", "a b:1", "tcp://::1:1", ":80", None],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidArgumentError, match=r"\[x\] expected an address as host:port"):
        check_address("[x]", text)


@pytest.mark.parametrize("text", ["ipc://relative", "ipc:///" + "x" * 107])
def test_a_path_must_fit_a_unix_socket(text):
    with pytest.raises(InvalidArgumentError, match="absolute path of at most 107 bytes"):
        check_address("[x]", text)


def test_a_server_may_ask_for_any_port():
    assert check_address("[x]", "127.0.0.1:0", with_any_port=True) == "tcp://127.0.0.1:0"


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("ipc:///x", True),
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.9.9.9:1", True),
        ("tcp://[::1]:1", True),
        ("tcp://localhost:1", True),
        ("tcp://0.0.0.0:1", False),
        ("tcp://10.0.0.1:1", False),
        ("tcp://[::]:1", False),
        ("tcp://ps-3.job:1", False),
        ("tcp://*:1", False),
    ],
)
def test_an_address_is_of_this_machine_alone_or_not(address, local):
    assert is_local(address) is local


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://0.0.0.0:1", True),
        ("tcp://[::]:1", True),
        ("tcp://*:1", True),
        ("tcp://127.0.0.1:1", False),
        ("tcp://host:1", False),
        ("ipc:///a", False),
    ],
)
def test_a_wildcard_stands_for_all_addresses(address, expected):
    assert is_wildcard(address) is expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://known:7000", "tcp://10.0.0.7:7000"),
        ("tcp://unknown:7000", "tcp://unknown:7000"),
        ("tcp://[::1]:7000", "tcp://[::1]:7000"),
        ("tcp://*:7000", "tcp://*:7000"),
        ("ipc:///a/b", "ipc:///a/b"),
    ],
)
def test_a_host_gets_its_number(monkeypatch, address, expected):
    def resolve(host):
        if host == "unknown":
            raise OSError(host)
        return "10.0.0.7"

    monkeypatch.setattr("socket.gethostbyname", resolve)
    assert numeric(address) == expected
