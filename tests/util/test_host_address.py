import socket

import pytest

from monolith.util.host_address import local_host

NAMES = ("CLOUDNATIVE_INET_ADDR", "YARN_INET_ADDR")


@pytest.mark.parametrize(
    ("values", "host"),
    [
        (("", "1.2.3.4"), "1.2.3.4"),
        (("1.2.3.4,5.6.7.8", ""), "1.2.3.4"),
        (("1.2.3.4,5.6.7.8", "9.9.9.9"), "1.2.3.4"),
        (("", ""), "10.0.0.1"),
    ],
)
def test_the_launch_environment_comes_before_the_resolver(monkeypatch, values, host):
    for name, value in zip(NAMES, values, strict=True):
        monkeypatch.setenv(name, value)
    answer = [(socket.AF_INET, 0, 0, "", ("10.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answer)
    assert local_host() == host


def test_a_host_without_announcement_has_an_address(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    assert local_host()
