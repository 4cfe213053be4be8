"""`AppMaster` with real servers of gRPC."""

import builtins
import math
import sys
import time

import grpc
import pytest

from monolith.control import AppMaster
from monolith.control.grpc_extra import load_grpc
from monolith.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    UnavailableError,
)
from tests.control.app_masters import STATES, FakeMaster, babbling, serving


@pytest.fixture
def channel(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with grpc.insecure_channel("unix:am") as channel:
        yield channel


def test_a_hung_application_master_costs_one_deadline(channel):
    start = time.monotonic()
    with (
        serving(FakeMaster(is_hung=True), "am"),
        pytest.raises(UnavailableError, match=r"answer .* within 0\.3 s, got DEADLINE_EXCEEDED"),
    ):
        AppMaster(channel, call_seconds=0.3).kill("why")
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("call", ["kill", "create_savepoint"])
def test_an_answer_that_is_no_message_is_an_error(channel, call):
    with babbling("am"), pytest.raises(UnavailableError, match="got INTERNAL"):
        getattr(AppMaster(channel), call)("x")


def test_a_server_without_the_calls_is_an_error(channel):
    server = grpc.server(None)
    server.add_insecure_port("unix:am")
    server.start()
    with pytest.raises(UnavailableError, match="got UNIMPLEMENTED"):
        AppMaster(channel).succeed()
    server.stop(None).wait(10)


def test_a_savepoint_that_stays_pending_has_a_limit(channel):
    sleeps = []
    with (
        serving(FakeMaster([STATES.PENDING] * 9), "am") as master,
        pytest.raises(DeadlineExceededError, match=r"within 10 s, got state PENDING .*\(dst\)"),
    ):
        AppMaster(channel).create_savepoint(
            "dst", limit_seconds=10, poll_seconds=11, sleep=sleeps.append
        )
    assert master.calls == ["createSavepoint", "createSavepointStatus"]
    assert sleeps == []


@pytest.mark.parametrize(("state", "name"), [(STATES.FAILED, "FAILED"), (17, "17")])
def test_another_state_is_a_failure_with_the_words_of_the_master(channel, state, name):
    with (
        serving(FakeMaster([state]), "am"),
        pytest.raises(AbortedError, match=rf"SUCCEEDED, got {name} \(dst\): of the data"),
    ):
        AppMaster(channel).create_savepoint("dst")


def test_a_savepoint_that_is_refused_is_an_error_with_its_code(channel):
    with (
        serving(FakeMaster(code=4), "am"),
        pytest.raises(FailedPreconditionError, match=r"code 0, got 4 \(dst\): no room"),
    ):
        AppMaster(channel).create_savepoint("dst")


def test_a_long_wait_is_logged(channel, caplog, monkeypatch):
    caplog.set_level("INFO")
    clock = iter([0.0, 61.0, 70.0])
    monkeypatch.setattr("monolith.control.app_master.time.monotonic", lambda: next(clock))
    with serving(FakeMaster([STATES.RUNNING] * 2 + [STATES.SUCCEEDED]), "am"):
        AppMaster(channel).create_savepoint("dst", limit_seconds=math.inf, poll_seconds=0)
    assert caplog.text.count("waiting for the savepoint dst, since 61 s") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda channel: AppMaster(channel, call_seconds=-1),
        lambda channel: AppMaster(channel).create_savepoint("dst", limit_seconds=-1),
    ],
)
def test_a_limit_is_at_least_zero(channel, call):
    with pytest.raises(ValueError, match="expected a limit of at least 0 seconds, got -1"):
        call(channel)


def test_a_missing_package_names_the_extra(monkeypatch):
    real = builtins.__import__

    def no_grpc(name, *arguments, **options):
        if name == "grpc":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "grpc")
    monkeypatch.setattr(builtins, "__import__", no_grpc)
    with pytest.raises(FailedPreconditionError, match=r"monolith-torch\[cluster\]"):
        load_grpc()
