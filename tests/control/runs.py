"""A run that notes what a controller asks of it."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from monolith.control import (
    BarrierAlreadyPlacedError,
    BlockStatus,
    RowValues,
    RunStatus,
    SavedCheckpoint,
    WorkerState,
    WorkerStatus,
)
from monolith.control.controlled import ALREADY_PLACED
from monolith.errors import NotFoundError

ROW = RowValues("user", 1_700_000_000, {"weight/0": [1.5, -2.0], "state/0/norm": [0.25]})


class FakeRun:
    """A run of two workers, of which 1 is silent; `error` is raised by the next save."""

    def __init__(self):
        self.is_stopped, self.error, self.limits, self.keys = False, None, [], []

    def stop(self, timeout_seconds=10.0):
        self.stop_limit = timeout_seconds
        if self.is_stopped:
            raise BarrierAlreadyPlacedError(ALREADY_PLACED)
        self.is_stopped = True

    def resume(self, timeout_seconds=10.0):
        self.is_stopped = False

    def block_status(self, timeout_seconds=10.0):
        return BlockStatus([0] if self.is_stopped else [], [1] if self.is_stopped else [0, 1])

    def save(self, timeout_seconds):
        self.limits.append(timeout_seconds)
        if self.error is not None:
            raise self.error
        return SavedCheckpoint("saves/model.ckpt-7", 7)

    def global_step(self, timeout_seconds=10.0):
        return 7

    def status(self, timeout_seconds=10.0):
        state = WorkerState.PARKED if self.is_stopped else WorkerState.RUNNING
        workers = [
            WorkerStatus(0, state, 4, 12.5, 0.25),
            WorkerStatus(1, WorkerState.SILENT, 3, 0.0, 11.0),
        ]
        return RunStatus(7, self.is_stopped, workers, "saves/model.ckpt-5", 56, 2, "Clicks")

    def rows(self, key, table, timeout_seconds=10.0):
        self.keys.append(key)
        if table == "missing":
            raise NotFoundError("[control] expected a table of the run (user), got 'missing'")
        return [ROW] if key == 7 else []


def write_certificate(folder):
    """Write a certificate of 127.0.0.1 that signs itself; return its file and that of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "controller")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    private = serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()))
    return str(folder / "cert.pem"), str(folder / "key.pem")
