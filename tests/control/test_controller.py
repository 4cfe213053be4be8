"""`ControllerServer` and its clients, over sockets of this machine."""

import os
import random
import socket
import stat
import sys
import threading
from types import SimpleNamespace

import grpc
import pytest

from monolith.control import (
    ADDRESS_FILE,
    CERTIFICATE_FILE,
    TOKEN_FILE,
    BarrierAlreadyPlacedError,
    ControllerClient,
    ControllerServer,
    ControllerStub,
    ControlOptions,
)
from monolith.control.controller_server import _Handlers
from monolith.control.grpc_extra import load_messages
from monolith.control.run_files import read_files
from monolith.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from tests.control.runs import ROW, FakeRun, write_certificate

pytestmark = pytest.mark.req("TS-SRVLIB-T3")


@pytest.fixture
def fake():
    return FakeRun()


@pytest.fixture
def server(fake, tmp_path):
    with ControllerServer(str(tmp_path), fake, ControlOptions(grace_seconds=0.5)) as server:
        yield server


@pytest.fixture
def client(server, tmp_path):
    with ControllerClient(str(tmp_path)) as client:
        yield client


def test_a_client_gets_what_the_run_says(client, fake):
    assert client.status() == fake.status()
    assert client.block_status() == ([], [0, 1])
    assert client.global_step() == 7
    assert client.save() == ("saves/model.ckpt-7", 7)


def test_a_stop_and_a_resume_reach_the_run(client, fake):
    client.stop()
    assert fake.is_stopped
    assert client.block_status() == ([0], [1])
    client.resume()
    client.resume()
    assert not fake.is_stopped


def test_a_second_stop_is_refused(client):
    client.stop()
    with pytest.raises(BarrierAlreadyPlacedError, match=r"^Barrier is placed already\.$"):
        client.stop()


def test_rows_of_a_key(client, fake):
    assert client.rows(7) == [ROW]
    assert client.rows((1 << 64) - 1) == client.rows(-1) == []
    assert fake.keys == [7, -1, -1]


def test_a_table_that_is_not_there_is_named(client):
    with pytest.raises(NotFoundError, match=r"a table of the run \(user\), got 'missing'"):
        client.rows(7, "missing")


@pytest.mark.parametrize(
    "kind",
    [
        *(AbortedError, DeadlineExceededError, FailedPreconditionError, InvalidArgumentError),
        *(NotFoundError, OpError, UnavailableError),
    ],
)
def test_an_error_of_a_save_arrives_with_its_class_and_text(client, fake, kind):
    fake.error = kind("[Chain] no space left")
    with pytest.raises(kind, match=r"^\[Chain\] no space left$"):
        client.save()


def test_a_save_gets_the_deadline_of_the_call(client, fake, server, tmp_path):
    client.save(5.0)
    files = read_files(str(tmp_path))
    metadata = [("authorization", f"Bearer {files.token}")]
    with grpc.insecure_channel(files.address) as channel:  # without a deadline
        channel.unary_unary("/Controller/SaveCheckpoint")(b"", metadata=metadata)
    assert 4 < fake.limits[0] <= 7
    assert fake.limits[1] == 3600


def test_too_many_saves_at_once_are_refused(client, fake):
    go, inside = threading.Event(), threading.Semaphore(0)

    def save(timeout_seconds):
        inside.release()
        go.wait(60)
        return "saves/model.ckpt-7", 7

    fake.save = save
    callers = [threading.Thread(target=client.save) for _ in range(4)]
    for caller in callers:
        caller.start()
        inside.acquire(timeout=60)
    with pytest.raises(UnavailableError, match="at most 4 saves at once, got one more"):
        client.save()
    assert client.global_step() == 7  # other calls have threads
    go.set()
    for caller in callers:
        caller.join(60)


def test_a_call_gets_the_time_that_its_caller_has_left(server, fake, tmp_path):
    with ControllerClient(str(tmp_path), timeout_seconds=5.0) as client:
        client.stop()
    assert 3 < fake.stop_limit < 5  # the answer has time, too


def test_too_many_calls_at_once_are_refused_and_saves_are_not(client, fake):
    go, inside = threading.Event(), threading.Semaphore(0)

    def rows(key, table, timeout_seconds):
        inside.release()
        go.wait(60)
        return []

    fake.rows = rows
    callers = [threading.Thread(target=client.rows, args=(7,)) for _ in range(10)]
    for caller in callers:
        caller.start()
        assert inside.acquire(timeout=60)
    with pytest.raises(UnavailableError, match="at most 10 calls at once, got one more"):
        client.stop()
    assert client.save().step == 7
    go.set()
    for caller in callers:
        caller.join(60)


def test_a_call_whose_caller_is_gone_is_not_done(fake):
    late = SimpleNamespace(
        is_active=lambda: False, time_remaining=lambda: 0.0, abort=lambda *answer: answer
    )
    handlers = _Handlers(grpc, fake)
    code, text = handlers._checked("StopTraining", handlers._stop)(None, late)
    assert (code.name, fake.is_stopped) == ("DEADLINE_EXCEEDED", False)
    assert text.endswith("nothing is done")


def calls_with(address, *metadata):
    """Ask with some metadata; return code and text."""
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary("/Controller/StopTraining")(b"", timeout=10, metadata=metadata)
        except grpc.RpcError as error:
            return error.code().name, error.details()
    return "OK", ""


def test_a_token_that_is_missing_wrong_or_of_another_job_is_refused(server, fake, tmp_path):
    other = tmp_path / "other"
    with ControllerServer(str(other), FakeRun()):
        token, others = read_files(str(tmp_path)).token, read_files(str(other)).token
        assert len(token) == 64
        key = "authorization"
        wrong = [(), ((key, "Bearer "),), ((key, token),), ((key, f"Bearer {others}"),)]
        wrong += [((key, f"Bearer {token}x"),), ((key, f"Bearer {token}"), (key, "x"))]
        for metadata in wrong:
            code, text = calls_with(server.address, *metadata)
            assert code == "UNAUTHENTICATED"
            assert text.startswith("[ControllerServer] expected the token of this run")
            assert token not in text
    assert not fake.is_stopped
    assert calls_with(server.address, (key, f"Bearer {token}"))[0] == "OK"


def test_a_client_with_another_token_says_so(server, tmp_path):
    (tmp_path / TOKEN_FILE).write_text("0" * 64)
    with (
        ControllerClient(str(tmp_path)) as client,
        pytest.raises(FailedPreconditionError, match="expected the token of the run at 127"),
    ):
        client.stop()


def test_only_the_owner_can_read_the_token(server, tmp_path):
    assert stat.S_IMODE(os.stat(tmp_path / TOKEN_FILE).st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [ADDRESS_FILE, TOKEN_FILE]


def test_each_run_has_a_token_of_its_own(tmp_path):
    tokens = set()
    for _ in range(2):
        with ControllerServer(str(tmp_path), FakeRun()):
            tokens.add(read_files(str(tmp_path)).token)
    assert len(tokens) == 2


def test_bytes_that_are_no_call_are_survived(server, client):
    host, port = server.address.split(":")
    generator = random.Random(1)
    garbage = [generator.randbytes(n) for n in (1, 9, 24, 100, 4096)] * 4
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    frames = [preface + generator.randbytes(n) for n in (9, 100, 4096)] * 4
    http = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /Controller/StopTraining HTTP/1.1\r\n\r\n"]
    for data in (*garbage, *frames, *http, preface + b"\xff\xff\xff" * 1000):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(data)
    assert not client.status().is_stopped


def test_a_message_that_is_none_or_too_large_is_refused(server, client, tmp_path):
    token = read_files(str(tmp_path)).token
    metadata = [("authorization", f"Bearer {token}")]
    method = "/monolith.control.Operation/Rows"
    with grpc.insecure_channel(server.address) as channel:
        for data in (b"\xff" * 10, b"\x12\xff\xff\xff\xff\x0f", b"\x12" * (1 << 20)):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(method)(data, timeout=10, metadata=metadata)
    assert client.global_step() == 7


def test_a_client_finds_a_controller_that_has_moved(tmp_path):
    first = ControllerServer(str(tmp_path), FakeRun(), ControlOptions(grace_seconds=0))
    with ControllerClient(str(tmp_path)) as client:
        client.stop()
        first._server.stop(None).wait()  # it is gone without a word
        with ControllerServer(str(tmp_path), FakeRun()) as second:
            assert not client.status().is_stopped
            assert (tmp_path / ADDRESS_FILE).read_text() == second.address
            first.close()  # leaves the files of the second one
            assert (tmp_path / ADDRESS_FILE).read_text() == second.address


def test_a_controller_that_nobody_serves_any_more_is_named(tmp_path):
    server = ControllerServer(str(tmp_path), FakeRun())
    server._server.stop(None).wait()
    text = f"expected the controller of '{tmp_path}' at {server.address}, got no answer"
    with ControllerClient(str(tmp_path)) as client, pytest.raises(UnavailableError, match=text):
        client.stop()


def test_a_server_that_does_not_answer_is_given_up(tmp_path):
    with ControllerServer(str(tmp_path), FakeRun()), socket.create_server(("127.0.0.1", 0)) as s:
        (tmp_path / ADDRESS_FILE).write_text(f"127.0.0.1:{s.getsockname()[1]}")
        with (
            ControllerClient(str(tmp_path), timeout_seconds=0.3) as client,
            pytest.raises(OpError, match=r"expected (an answer of )?the controller"),
        ):
            client.stop()


@pytest.mark.parametrize("is_made", [True, False])
def test_a_folder_without_a_controller_is_named(tmp_path, is_made):
    folder = tmp_path if is_made else tmp_path / "missing"
    with pytest.raises(NotFoundError, match=rf"expected the file {ADDRESS_FILE} of a run"):
        ControllerClient(str(folder))


def test_the_end_removes_the_files_and_refuses_calls(server, tmp_path):
    with ControllerStub.of_model_dir(str(tmp_path)) as stub:
        server.close()
        server.close()
        with pytest.raises(grpc.RpcError) as error:
            stub.GetTrainingStatus()
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert list(tmp_path.iterdir()) == []


def test_tls_is_used_by_itself(tmp_path, fake):
    cert, key = write_certificate(tmp_path)
    folder = tmp_path / "run"
    with ControllerServer(str(folder), fake, ControlOptions(cert=cert, key=key)) as server:
        assert (folder / CERTIFICATE_FILE).read_bytes() == (tmp_path / "cert.pem").read_bytes()
        with ControllerClient(str(folder)) as client:
            client.stop()
        assert fake.is_stopped
        assert calls_with(server.address)[0] == "UNAVAILABLE"  # without TLS
    assert list(folder.iterdir()) == []


def test_a_secret_key_in_the_file_of_the_certificate_stays_there(tmp_path, fake):
    write_certificate(tmp_path)
    cert, key = (tmp_path / "cert.pem").read_text(), (tmp_path / "key.pem").read_text()
    both, folder = tmp_path / "both.pem", tmp_path / "run"
    both.write_text(f"Bag Attributes\n{key}{cert}")
    options = ControlOptions(cert=str(both), key=str(both))
    with ControllerServer(str(folder), fake, options), ControllerClient(str(folder)) as client:
        assert (folder / CERTIFICATE_FILE).read_text() == cert
        assert client.global_step() == 7


def test_a_file_without_a_certificate_is_named(tmp_path):
    _, key = write_certificate(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"a certificate in PEM, got none in .*key\.pem"):
        ControllerServer(str(tmp_path / "run"), FakeRun(), ControlOptions(cert=key, key=key))
    assert not (tmp_path / "run").exists()


def test_a_run_without_tls_removes_the_certificate_of_the_run_before(tmp_path):
    (tmp_path / CERTIFICATE_FILE).write_text("old")
    with ControllerServer(str(tmp_path), FakeRun()):
        assert not (tmp_path / CERTIFICATE_FILE).exists()


def test_a_certificate_that_is_not_there_is_named(tmp_path):
    options = ControlOptions(cert=str(tmp_path / "no.pem"), key="x")
    with pytest.raises(OSError, match=r"No such file or directory: .*no\.pem"):
        ControllerServer(str(tmp_path), FakeRun(), options)


def test_an_address_in_use_is_refused(server, tmp_path):
    options = ControlOptions(bind=server.address)
    with pytest.raises(UnavailableError, match=f"expected to listen at {server.address}"):
        ControllerServer(str(tmp_path), FakeRun(), options)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OpError, match="expected to write the address of the controller"):
        ControllerServer(str(tmp_path / "file"), FakeRun())


def test_the_address_of_ip_6_has_brackets(tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with ControllerServer(str(tmp_path), FakeRun(), ControlOptions(bind="[::1]:0")):
        assert (tmp_path / ADDRESS_FILE).read_text().startswith("[::1]:")
        with ControllerClient(str(tmp_path)) as client:
            assert client.global_step() == 7


def test_files_of_a_store_are_those_of_a_folder():
    folder = "memory://controlled-run"
    with ControllerServer(folder, FakeRun()), ControllerClient(folder) as client:
        assert client.global_step() == 7
    with pytest.raises(NotFoundError):
        read_files(folder)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bind": "127.0.0.1"}, "expected bind as host:port, got '127.0.0.1'"),
        ({"bind": ":0"}, "expected bind as host:port, got ':0'"),
        ({"bind": "127.0.0.1:70000"}, "expected bind as host:port"),
        ({"cert": "a"}, "expected cert and key, or none, got cert 'a' and key None"),
        ({"bind": "0.0.0.0:0", "insecure": True}, "a host that clients reach, got '0.0.0.0:0'"),
        ({"bind": "10.0.0.1:0"}, "a loopback address or TLS, got '10.0.0.1:0' without cert"),
        ({"bind": "trainer:0"}, "a loopback address or TLS"),
    ],
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        ControlOptions(**options)


@pytest.mark.parametrize(
    "options",
    [
        *({"bind": "localhost:0"}, {"bind": "[::1]:80"}, {"bind": "10.0.0.1:0", "insecure": True}),
        {"bind": "trainer:0", "cert": "a", "key": "b"},
    ],
)
def test_options_that_are_fine(options):
    assert ControlOptions(**options).host == options["bind"].rpartition(":")[0].strip("[]")


def test_the_messages_are_those_of_the_reference_system():
    messages = load_messages("controller")
    numbers = {
        field.name: field.number for field in messages.GetBlockStatusResponse.DESCRIPTOR.fields
    }
    assert numbers == {"blocked_indices": 1, "unblocked_indices": 2}
    status = messages.GetTrainingStatusResponse(global_step=300)
    assert status.SerializeToString().hex() == "08ac02"
    service = messages.DESCRIPTOR.services_by_name["Controller"]
    assert (service.full_name, [m.name for m in service.methods]) == (
        "Controller",
        ["StopTraining", "ResumeTraining", "GetBlockStatus", "SaveCheckpoint", "GetTrainingStatus"],
    )


def test_an_error_that_is_none_of_ours_is_logged_and_told(client, fake, caplog):
    fake.error = RuntimeError("a bug")
    with pytest.raises(OpError, match=r"^a bug$"):
        client.save()
    assert "a call of Save failed" in caplog.text


def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(FailedPreconditionError, match=r"pip install 'monolith-torch\[cluster\]'"):
        ControllerServer(str(tmp_path), FakeRun())
