import contextlib
import os
import signal
import sys
import threading

import pytest

from monolith.observe import signals
from monolith.observe.signals import install_stack_trace_handler, print_stack_trace

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs SIGUSR1")


@pytest.fixture(autouse=True)
def handler():
    """Restores the handler; each test starts without one."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupted_here():
    signal.raise_signal(signal.SIGUSR1)


@contextlib.contextmanager
def waiting_thread():
    """A thread that stays in `wait_for_the_end`."""
    started, end = threading.Event(), threading.Event()

    def wait_for_the_end():
        started.set()
        end.wait(timeout=60)

    thread = threading.Thread(target=wait_for_the_end, name="patient")
    thread.start()
    started.wait(timeout=60)
    yield
    end.set()
    thread.join()


@pytest.mark.req("NT-SIG-T1")
def test_the_handler_before_is_called_before_the_trace(capsys):
    signal.signal(signal.SIGUSR1, lambda sig, frame: print(f"first {sig}, {frame.f_code.co_name}"))
    assert install_stack_trace_handler()
    interrupted_here()
    out = capsys.readouterr().out
    assert out.startswith(f"first {signal.SIGUSR1:d}, ")
    assert "in interrupted_here" in out


@pytest.mark.req("NT-SIG-T1")
def test_the_interrupted_stack_comes_before_those_of_other_threads(capsys):
    install_stack_trace_handler()
    with waiting_thread():
        interrupted_here()
    out = capsys.readouterr().out
    parts = ["in interrupted_here", "Stack of thread patient:", "in wait_for_the_end"]
    assert [out.count(part) for part in parts] == [1, 1, 1]
    assert [out.index(part) for part in parts] == sorted(out.index(part) for part in parts)


def test_without_a_frame_only_other_threads_are_printed(capsys):
    with waiting_thread():
        print_stack_trace(10, None)
    out = capsys.readouterr().out
    assert "in wait_for_the_end" in out
    assert "in test_without_a_frame" not in out


def test_outside_the_main_thread_no_handler_is_installed():
    results = []
    thread = threading.Thread(target=lambda: results.append(install_stack_trace_handler()))
    thread.start()
    thread.join()
    assert (results, signal.getsignal(signal.SIGUSR1)) == ([False], signal.SIG_IGN)


def test_without_the_signal_no_handler_is_installed(monkeypatch):
    number = signal.SIGUSR1
    monkeypatch.delattr(signal, "SIGUSR1")
    assert not install_stack_trace_handler()
    monkeypatch.undo()
    assert signal.getsignal(number) == signal.SIG_IGN


class Busy:
    """A stream that is being written when the signal comes."""

    def write(self, text):
        raise RuntimeError("reentrant call")


def test_a_busy_output_sends_the_trace_to_the_error_output(monkeypatch):
    written = []
    monkeypatch.setattr(sys, "stdout", Busy())
    monkeypatch.setattr(signals.os, "write", lambda number, data: written.append((number, data)))
    print_stack_trace(10, sys._getframe())
    ((number, data),) = written
    assert number == 2
    assert b"in test_a_busy_output" in data
    assert os.path.basename(__file__).encode() in data
