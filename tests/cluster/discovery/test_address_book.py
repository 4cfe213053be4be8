import threading
import time

import pytest

from monolith.cluster.discovery import ServiceDiscovery, address_book
from monolith.cluster.discovery.address_book import AddressBook
from monolith.errors import NotFoundError, UnavailableError
from tests.suites.discovery import until


class Counted(ServiceDiscovery):
    """Counts queries; `answer` is what they return, or raise."""

    def __init__(self, answer=None):
        self.answer, self.num_queries = answer or {}, 0

    def register(self, name, index, addr): ...

    def deregister(self, name, index, addr): ...

    def query(self, name):
        self.num_queries += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return dict(self.answer)


def found(book, number):
    def address():
        try:
            return book.address(number)
        except NotFoundError:
            return None

    return until(address)


def test_an_address_is_found_soon():
    assert found(AddressBook(Counted({1: "a:1"}), "ps"), 1) == "a:1"


def test_an_address_that_changes_is_found():
    discovery = Counted({0: "a:1"})
    book = AddressBook(discovery, "ps")
    assert found(book, 0) == "a:1"
    discovery.answer = {0: "b:1"}
    until(lambda: book.address(0) == "b:1")


def test_a_question_never_waits_for_the_discovery():
    class Slow(Counted):
        def query(self, name):
            threading.Event().wait(3)
            return {}

    book = AddressBook(Slow(), "ps")
    start = time.monotonic()
    for _ in range(20):
        with pytest.raises(NotFoundError, match="ps 0 to be registered, got none yet"):
            book.address(0)
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize("error", [UnavailableError("away"), OSError("away"), ValueError("away")])
def test_a_failed_query_is_named_and_tried_again(error):
    discovery = Counted(error)
    book = AddressBook(discovery, "ps")

    def is_named():
        with pytest.raises(NotFoundError) as raised:
            book.address(0)
        return "ps 0 to be registered, got no answer of the discovery: away" in str(raised.value)

    until(is_named)
    discovery.answer = {0: "a:1"}
    assert found(book, 0) == "a:1"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_of_another_class_does_not_end_the_book():
    discovery = Counted(RuntimeError("a bug"))
    book = AddressBook(discovery, "ps")

    def is_named():
        with pytest.raises(NotFoundError) as raised:
            book.address(0)
        return "no answer of the discovery: a bug" in str(raised.value)

    until(is_named)
    discovery.answer = {0: "a:1"}
    assert found(book, 0) == "a:1"


def test_nobody_asks_the_discovery_when_nobody_asks_the_book(monkeypatch):
    monkeypatch.setattr(address_book, "_IDLE_SECONDS", 0.05)
    monkeypatch.setattr(address_book, "_WAIT_SECONDS", 0.05)
    discovery = Counted({0: "a:1"})
    book = AddressBook(discovery, "ps")
    assert found(book, 0) == "a:1"
    until(lambda: book._thread is None)
    num_queries = discovery.num_queries
    threading.Event().wait(0.3)
    assert discovery.num_queries == num_queries
    discovery.answer = {0: "b:1"}
    until(lambda: book.address(0) == "b:1")
