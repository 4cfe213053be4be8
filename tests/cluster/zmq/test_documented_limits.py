"""`docs/wire.md` has the limits of the code."""

import dataclasses
import re

import pytest

from monolith.cluster import call_host, server_host
from monolith.cluster.zmq.sessions import Limits
from tests.meta.tree import ROOT

UNITS = {"": 1, " s": 1, " MiB": 1 << 20, " GiB": 1 << 30}
OTHERS = {
    "clients that a host refuses by a fence": call_host.MAX_FENCED,
    "answers of a client that a host keeps": call_host._MAX_KEPT,
    "bytes of these answers": call_host.MAX_KEPT_BYTES,
    "named values": server_host.MAX_VALUES,
    "bytes of the named values together": server_host.MAX_VALUE_BYTES,
    "bytes of a frame (`frame_bytes`), elsewhere": Limits()
    .with_frames(is_trusted=False)
    .frame_bytes,
}


@pytest.fixture(scope="module")
def documented():
    """Name -> number of the table, without the fields of `Limits` in brackets."""
    text = (ROOT / "docs" / "wire.md").read_text()
    rows = re.findall(r"^\| (.+?) \| ([\d,]+)( s| MiB| GiB|) \| ", text, re.MULTILINE)
    return {name: int(number.replace(",", "")) * UNITS[unit] for name, number, unit in rows}


def test_all_limits_of_clients_are_documented(documented):
    fields = {}
    for name, number in documented.items():
        if (field := re.search(r"\(`(\w+)`\)", name)) and not name.endswith("elsewhere"):
            fields[field[1]] = number
    assert fields == dataclasses.asdict(Limits().with_frames(is_trusted=True))


@pytest.mark.parametrize("name", OTHERS)
def test_a_limit_is_documented(documented, name):
    assert documented[name] == OTHERS[name]
