import importlib
import signal
import sys
import threading

import pytest

from monolith.observe import signals

NAME = "monolith.native_training.signal_utils"

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs SIGUSR1")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Restores the handler; the module is not imported yet."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield
    signal.signal(signal.SIGUSR1, before)


def count_of_stacks(capsys):
    signal.raise_signal(signal.SIGUSR1)
    return capsys.readouterr().out.count("stack of the interrupted thread")


@pytest.mark.req("TS-SIG-T1")
def test_basic(capsys):
    module = importlib.import_module(NAME)
    for _ in range(2):
        module.add_siguser1_handler()
    assert count_of_stacks(capsys) == 3  # the import installs it too


def test_an_import_installs_the_handler_once(capsys):
    for _ in range(2):
        module = importlib.import_module(NAME)
    assert count_of_stacks(capsys) == 1
    assert module.print_stack_trace is signals.print_stack_trace


def test_an_import_outside_the_main_thread_does_nothing():
    thread = threading.Thread(target=importlib.import_module, args=(NAME,))
    thread.start()
    thread.join()
    assert NAME in sys.modules
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN


def test_an_import_on_a_system_without_the_signal_does_nothing(monkeypatch):
    with monkeypatch.context() as patch:
        patch.delattr(signal, "SIGUSR1")
        importlib.import_module(NAME)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
