"""The addresses of ranks of several machines."""

import socket
import threading

import pytest

from monolith.cluster.ranks.rank_tables import RankTables
from monolith.errors import InvalidArgumentError
from tests.cluster.ranks.rank_threads import run_ranks


def loopback(name):
    return "127.0.1.1"


def unknown(name):
    raise socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize(
    ("find", "text"), [(loopback, "127.0.1.1"), (unknown, "Name or service not known")]
)
def test_a_host_name_that_others_do_not_reach_is_refused(monkeypatch, find, text):
    monkeypatch.setattr(socket, "gethostname", lambda: threading.current_thread().name)
    monkeypatch.setattr(socket, "gethostbyname", find)
    with pytest.raises(InvalidArgumentError, match=f"other machines reach this one.*{text}"):
        run_ranks(2, RankTables)
