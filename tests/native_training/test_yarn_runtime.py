"""The address of this host, and the application master."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from monolith.native_training import yarn_runtime
from tests.control.app_masters import STATES, FakeMaster, serving


@pytest.fixture
def master(monkeypatch, tmp_path, request):
    """Configures an application master at a Unix socket, of the name of the test."""
    monkeypatch.chdir(tmp_path)
    name = request.node.originalname
    monkeypatch.setenv("PRIMUS_AM_RPC_HOST", "unix")
    monkeypatch.setenv("PRIMUS_AM_RPC_PORT", name)
    monkeypatch.setattr(yarn_runtime, "_CHANNEL_MAP", {})
    yield lambda *arguments, **options: serving(FakeMaster(*arguments, **options), name)
    for channel in yarn_runtime._CHANNEL_MAP.values():
        channel.close()


@pytest.fixture
def no_master(monkeypatch):
    for name in ("HOST", "PORT"):
        monkeypatch.delenv(f"PRIMUS_AM_RPC_{name}", raising=False)


@pytest.mark.req("TS-YARN-T1")
def test_get_local_host_overwrite(monkeypatch):
    monkeypatch.delenv("CLOUDNATIVE_INET_ADDR", raising=False)
    monkeypatch.setenv("YARN_INET_ADDR", "1.2.3.4")
    assert yarn_runtime.get_local_host() == "1.2.3.4"


@pytest.mark.req("TS-YARN-T2")
@pytest.mark.parametrize("yarn", [None, "9.9.9.9"])
def test_get_local_host_overwrite_by_cloudnative(monkeypatch, yarn):
    monkeypatch.delenv("YARN_INET_ADDR", raising=False)
    if yarn is not None:
        monkeypatch.setenv("YARN_INET_ADDR", yarn)
    monkeypatch.setenv("CLOUDNATIVE_INET_ADDR", "1.2.3.4,5.6.7.8")
    assert yarn_runtime.get_local_host() == "1.2.3.4"


@pytest.mark.req("TS-YARN-T3")
def test_get_local_host_basic(monkeypatch):
    for name in ("CLOUDNATIVE_INET_ADDR", "YARN_INET_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert yarn_runtime.get_local_host()


@pytest.mark.req("TS-YARN-T4")
def test_kill(master):
    with master() as served:
        assert yarn_runtime.maybe_kill_application("test") is True
    ((name, request, _),) = served.requests
    assert (name, request.diagnose) == ("kill", "test")


@pytest.mark.req("TS-YARN-T5")
def test_finish(master):
    with master() as served:
        assert yarn_runtime.maybe_finish_application() is True
    assert served.calls == ["succeed"]


@pytest.mark.req("TS-YARN-T6")
def test_save_primus(master):
    with master([STATES.SUCCEEDED]) as served:
        assert yarn_runtime.create_primus_save_point("dst") is True
    assert served.calls == ["createSavepoint", "createSavepointStatus"]


@pytest.mark.req("NT-YARN-T1")
def test_a_savepoint_is_waited_for(master):
    sleeps = []
    with master([STATES.RUNNING, STATES.RUNNING, STATES.SUCCEEDED]):
        made = yarn_runtime.create_primus_save_point("dst", sleep=sleeps.append)
    assert (made, sleeps) == (True, [5, 5])


@pytest.mark.req("NT-YARN-T1")
@pytest.mark.parametrize("state", [STATES.FAILED, 17])
def test_a_savepoint_that_fails(master, caplog, state):
    with master([STATES.PENDING, state]):
        made = yarn_runtime.create_primus_save_point("dst", poll_seconds=0)
    assert made is False
    assert "Failed to create the savepoint dst" in caplog.text


@pytest.mark.req("NT-YARN-T1")
def test_a_savepoint_that_is_refused_is_not_polled(master, caplog):
    with master(code=1) as served:
        assert yarn_runtime.create_primus_save_point("dst") is False
    assert served.calls == ["createSavepoint"]
    assert "no room" in caplog.text


@pytest.mark.req("NT-YARN-T1")
def test_a_savepoint_without_an_end_has_a_limit(master):
    with master([STATES.RUNNING] * 5):
        assert yarn_runtime.create_primus_save_point("dst", limit_seconds=0) is False


@pytest.mark.req("NT-YARN-T1")
def test_a_master_that_is_down(master):
    assert yarn_runtime.maybe_kill_application("test") is False
    assert yarn_runtime.maybe_finish_application() is False
    assert yarn_runtime.create_primus_save_point("dst") is False


@pytest.mark.req("NT-YARN-T2")
def test_without_a_master_nothing_is_done(no_master, caplog):
    caplog.set_level("INFO")
    assert yarn_runtime.maybe_finish_application() is None
    assert yarn_runtime.create_primus_save_point("dst") is None
    assert caplog.text == ""
    assert yarn_runtime.maybe_kill_application("test") is False
    (record,) = caplog.records
    assert record.message == "Current framework doesn't support kill. Ignore killing..."


@pytest.mark.req("NT-YARN-T2")
@pytest.mark.parametrize("name", ["HOST", "PORT"])
def test_one_variable_alone_is_no_master(no_master, monkeypatch, name):
    monkeypatch.setenv(f"PRIMUS_AM_RPC_{name}", "x")
    assert yarn_runtime._get_primus_am_host() == ""


@pytest.mark.req("NT-YARN-T3")
def test_threads_share_the_channel_of_an_address(master):
    barrier = threading.Barrier(8)

    def get(number):
        barrier.wait(30)
        return yarn_runtime._get_channel("unix:x")

    with ThreadPoolExecutor(8) as pool:
        channels = {id(channel) for channel in pool.map(get, range(8))}
    assert len(channels) == 1
    assert id(yarn_runtime._get_channel("unix:y")) not in channels


@pytest.mark.req("NT-YARN-T3")
def test_the_requests_have_these_bytes_and_deadlines(master):
    with master([STATES.SUCCEEDED]) as served:
        yarn_runtime.maybe_kill_application("why")
        yarn_runtime.maybe_finish_application()
        yarn_runtime.create_primus_save_point("dst")
    assert [(name, request.SerializeToString()) for name, request, _ in served.requests] == [
        ("kill", b"\x08\x01\x12\x03why\x1a\x04\x08\xa0\x9c\x01"),
        ("succeed", b"\x1a\x04\x08\xa0\x9c\x01"),
        ("createSavepoint", b"\x0a\x03dst"),
        ("createSavepointStatus", b"\x0a\x03123"),
    ]
    assert all(8 < seconds < 10.1 for _, _, seconds in served.requests)


@pytest.mark.thorough
def test_grpc_is_imported_only_with_a_master(no_master):
    program = (
        "import sys; from monolith.native_training import yarn_runtime as y; "
        "y.maybe_kill_application(''); y.maybe_finish_application(); "
        "y.create_primus_save_point(''); assert 'grpc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
