"""What every discovery does; see `tests/cluster/discovery/` for the classes that join."""

import re
import threading
import time

import pytest

from monolith.errors import FailedPreconditionError

LIMIT_SECONDS = 20.0


def until(is_true, seconds=LIMIT_SECONDS):
    """Wait until a function returns a true value, and return the value."""
    end, pause = time.monotonic() + seconds, threading.Event()
    while not (value := is_true()):
        assert time.monotonic() < end, f"not within {seconds} seconds"
        pause.wait(0.02)
    return value


@pytest.mark.req("NT-SD-T4")
class FixedSuite:
    """Facts of every discovery. A class that joins has two fixtures.

    Attributes:
        discovery: a discovery of a job with `known` processes.
        known: name -> index -> address.
    """

    def test_a_name_has_its_addresses(self, discovery, known):
        assert {name: discovery.query(name) for name in known} == known

    def test_addresses_are_in_the_order_of_their_indices(self, discovery, known):
        assert all(list(discovery.query(name)) == sorted(known[name]) for name in known)

    def test_the_caller_may_change_what_a_query_returns(self, discovery, known):
        discovery.query("ps").clear()
        assert discovery.query("ps") == known["ps"]

    def test_a_wait_for_a_change_ends_at_once_if_the_caller_knows_other_addresses(
        self, discovery, known
    ):
        start = time.monotonic()
        assert discovery.wait_change("ps", {9: "old:1"}, LIMIT_SECONDS) == known["ps"]
        assert time.monotonic() - start < LIMIT_SECONDS / 2

    def test_a_wait_for_a_change_ends_after_its_time(self, discovery, known):
        start = time.monotonic()
        assert discovery.wait_change("ps", known["ps"], 0.2) == known["ps"]
        assert 0.15 < time.monotonic() - start < LIMIT_SECONDS

    def test_an_index_is_held_twice_by_one_process(self, discovery):
        discovery.hold("ps", 0)
        discovery.hold("ps", 0)

    def test_closing_twice_is_fine(self, discovery):
        discovery.close()
        discovery.close()


@pytest.mark.req("NT-SD-T4")
class DiscoverySuite(FixedSuite):
    """Facts of discoveries in which processes register. A class that joins has, beside `source`:

    Attributes:
        open_one: fixture: a function that returns another discovery of the same job.
        source: fixture: an expression that does it in another process.
        registrar: fixture: a `Registrar`.
        forgets: whether an address goes with `deregister`, and with its process.
    """

    forgets = True
    known_addresses = {
        "ps": {0: "127.0.0.1:7000", 1: "127.0.0.1:7001"},
        "worker": {0: "10.0.0.3:1"},
    }

    @pytest.fixture
    def discovery(self, open_one):
        return open_one()

    @pytest.fixture
    def known(self, open_one):
        other = open_one()
        for name, addresses in self.known_addresses.items():
            for index, address in addresses.items():
                other.register(name, index, address)
        reader = open_one()
        until(lambda: all(reader.query(name) for name in self.known_addresses))
        return self.known_addresses

    @pytest.fixture(autouse=True)
    def _known_is_seen(self, request):
        """The discovery of the test sees what `known` has registered."""
        if {"discovery", "known"} <= {*request.fixturenames}:
            discovery, known = (request.getfixturevalue(n) for n in ("discovery", "known"))
            until(lambda: all(discovery.query(name) == known[name] for name in known))

    def test_a_name_without_processes_has_no_addresses(self, discovery):
        assert discovery.query("ps") == {}

    def test_a_registered_address_is_found_by_the_registrar(self, discovery):
        discovery.register("ps", 3, "127.0.0.1:7003")
        assert discovery.query("ps") == {3: "127.0.0.1:7003"}

    def test_a_registered_address_is_found_by_others(self, discovery, open_one):
        open_one().register("ps", 3, "127.0.0.1:7003")
        until(lambda: discovery.query("ps") == {3: "127.0.0.1:7003"})

    def test_names_are_apart(self, discovery):
        discovery.register("ps", 0, "127.0.0.1:7000")
        discovery.register("worker", 0, "127.0.0.1:7001")
        assert discovery.query("ps") == {0: "127.0.0.1:7000"}
        assert discovery.query("worker") == {0: "127.0.0.1:7001"}

    def test_a_later_address_takes_the_place(self, discovery, open_one):
        other = open_one()
        for port in (7000, 7001):
            discovery.register("ps", 0, f"127.0.0.1:{port}")
        assert discovery.query("ps") == {0: "127.0.0.1:7001"}
        until(lambda: other.query("ps") == {0: "127.0.0.1:7001"})

    def test_the_address_of_another_process_takes_the_place(self, discovery, open_one):
        discovery.register("ps", 0, "127.0.0.1:7000")
        open_one().register("ps", 0, "127.0.0.1:7001")
        until(lambda: discovery.query("ps") == {0: "127.0.0.1:7001"})

    def test_a_deregistered_address(self, discovery, open_one):
        other = open_one()
        discovery.register("ps", 0, "127.0.0.1:7000")
        discovery.register("ps", 1, "127.0.0.1:7001")
        discovery.deregister("ps", 0, "127.0.0.1:7000")
        left = {} if self.forgets else {0: "127.0.0.1:7000"}
        until(lambda: other.query("ps") == {**left, 1: "127.0.0.1:7001"})

    def test_an_address_after_the_end_of_its_process(self, discovery, registrar, source):
        with registrar.process(source, ["register", "ps", 0, "127.0.0.1:7000"]):
            until(lambda: discovery.query("ps") == {0: "127.0.0.1:7000"})
        left = {} if self.forgets else {0: "127.0.0.1:7000"}
        until(lambda: discovery.query("ps") == left)

    def test_a_change_ends_a_wait(self, discovery, open_one):
        other, seen = open_one(), []
        wait = threading.Thread(
            target=lambda: seen.append(discovery.wait_change("ps", {}, LIMIT_SECONDS))
        )
        wait.start()
        other.register("ps", 0, "127.0.0.1:7000")
        wait.join(LIMIT_SECONDS / 2)
        assert seen == [{0: "127.0.0.1:7000"}]

    def test_an_index_has_one_living_process(self, discovery, registrar, source):
        with registrar.process(source, ["hold", "ps", 0]) as child:
            text = re.escape(f"no process is ps 0, got one that is alive: process {child} on ")
            with pytest.raises(FailedPreconditionError, match=text):
                discovery.hold("ps", 0)
            discovery.hold("ps", 1)
            discovery.hold("worker", 0)

    def test_the_index_of_a_killed_process_is_free(self, discovery, registrar, source):
        with registrar.process(source, ["hold", "ps", 0]):
            pass
        discovery.hold("ps", 0)

    def test_the_index_of_a_closed_discovery_is_free(self, discovery, open_one):
        other = open_one()
        other.hold("ps", 0)
        other.close()
        discovery.hold("ps", 0)
