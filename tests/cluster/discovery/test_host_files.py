import os
import subprocess
import sys

import pytest

from monolith.cluster.discovery import HostServiceDiscovery
from monolith.errors import FailedPreconditionError, InvalidArgumentError


@pytest.fixture
def discovery(tmp_path):
    discovery = HostServiceDiscovery(tmp_path / "job")
    yield discovery
    discovery.close()


def test_a_registered_address_is_found(discovery):
    discovery.register("ps", 1, "b:2")
    discovery.register("ps", 0, "a:1")
    discovery.register("worker", 0, "c:3")
    assert discovery.query("ps") == {0: "a:1", 1: "b:2"}


def test_a_name_without_processes_has_no_addresses(discovery):
    assert discovery.query("ps") == {}


def test_the_file_of_a_process_holds_its_address(discovery, tmp_path):
    discovery.register("ps", 3, "a:1")
    assert (tmp_path / "job" / "ps" / "3").read_text() == "a:1"


def test_a_later_address_takes_the_place(discovery):
    discovery.register("ps", 0, "a:1")
    discovery.register("ps", 0, "a:2")
    assert discovery.query("ps") == {0: "a:2"}


def test_an_address_stays_when_its_process_ends(discovery):
    discovery.register("ps", 0, "a:1")
    discovery.deregister("ps", 0, "a:1")
    assert discovery.query("ps") == {0: "a:1"}


def test_other_files_are_no_processes(discovery, tmp_path):
    discovery.hold("ps", 0)
    (tmp_path / "job" / "ps" / "notes").write_text("x")
    assert discovery.query("ps") == {}


HOLD = """
import sys
from monolith.cluster.discovery import HostServiceDiscovery
discovery = HostServiceDiscovery(sys.argv[1])
discovery.hold("ps", 0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.dist
def test_an_index_belongs_to_one_living_process(discovery, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "job")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(FailedPreconditionError, match="no process is ps 0, got one that is"):
            discovery.hold("ps", 0)
        discovery.hold("ps", 1)
        process.kill()
        process.wait(60)
        discovery.hold("ps", 0)


def test_closing_gives_an_index_back(discovery, tmp_path):
    discovery.hold("ps", 0)
    discovery.close()
    other = HostServiceDiscovery(tmp_path / "job")
    other.hold("ps", 0)
    other.close()


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0"])
def test_a_name_must_be_one(discovery, name):
    with pytest.raises(InvalidArgumentError, match="the name of a kind of process"):
        discovery.query(name)


def test_a_file_is_whole_or_not_there(discovery, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        discovery.register("ps", 0, "a:1")
    assert discovery.query("ps") == {}
