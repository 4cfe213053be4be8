"""What the chief of a job tells the application master at its end."""

import time
from contextlib import nullcontext

import pytest

from monolith.errors import FailedPreconditionError
from monolith.native_training import yarn_runtime
from monolith.native_training.jobs import distributed
from tests.control.app_masters import FakeMaster, serving
from tests.native_training.jobs.test_distributed import Tries


@pytest.fixture
def job(monkeypatch, tmp_path):
    """Runs a worker with an application master, and returns what the master was told."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIMUS_AM_RPC_HOST", "unix")
    monkeypatch.setenv("PRIMUS_AM_RPC_PORT", "am")
    monkeypatch.setattr(yarn_runtime, "_CHANNEL_MAP", {})

    def run(*errors, master=None, ended="end of data", **config):
        tries = Tries(monkeypatch, tmp_path, *errors, ended=ended, **config)
        tries.discovery.register("worker", 0, "c:1")
        expected = pytest.raises(type(errors[0])) if errors else nullcontext()
        with serving(master or FakeMaster(), "am") as served, expected:
            assert tries.run() is tries.report
        return served.requests

    yield run
    for channel in yarn_runtime._CHANNEL_MAP.values():
        channel.close()


@pytest.mark.parametrize("ended", ["end of data", "steps", "early stop", "stopped"])
def test_the_chief_reports_success(job, ended):
    assert [name for name, _, _ in job(ended=ended)] == ["succeed"]


@pytest.mark.parametrize("ended", ["terminated", "interrupted"])
def test_the_chief_of_a_job_that_a_signal_ended_reports_nothing(job, ended, caplog):
    assert job(ended=ended) == []
    assert f"the application master hears of no success: the job was {ended}" in caplog.text


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("no data"), "no data"), (KeyboardInterrupt(), "KeyboardInterrupt")],
)
def test_the_chief_reports_a_kill_with_the_error(job, error, text):
    ((name, request, _),) = job(error)
    assert (name, request.exit_code, request.diagnose) == ("kill", 1, text)


def test_another_worker_reports_nothing(job):
    assert job(index=1, num_workers=2) == []


def test_a_master_that_hangs_does_not_hang_the_job(job, monkeypatch):
    monkeypatch.setattr(
        "monolith.control.app_master.AppMaster.__init__.__kwdefaults__", {"call_seconds": 0.3}
    )
    start = time.monotonic()
    assert [name for name, _, _ in job(master=FakeMaster(is_hung=True))] == ["succeed"]
    assert time.monotonic() - start < 10


def test_a_missing_package_is_an_error_before_the_training(monkeypatch, tmp_path):
    def missing():
        raise FailedPreconditionError("no gRPC")

    monkeypatch.setenv("PRIMUS_AM_RPC_HOST", "unix")
    monkeypatch.setenv("PRIMUS_AM_RPC_PORT", "am")
    monkeypatch.setattr(distributed, "load_grpc", missing)
    tries = Tries(monkeypatch, tmp_path)
    with pytest.raises(FailedPreconditionError, match="no gRPC"):
        tries.run()
    assert tries.num_tries == 0
