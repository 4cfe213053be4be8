"""The files of a model directory by which other processes find its controller."""

import contextlib
import os
import posixpath
import tempfile
from typing import NamedTuple

from monolith.errors import NotFoundError, OpError
from monolith.table.disk.folder import open_folder
from monolith.util.stores import local_path, open_store

ADDRESS_FILE = "controller_server_addr.txt"
"""Name of the file with the address of the controller, `host:port`."""

TOKEN_FILE = "controller_server_token"
"""Name of the file with the token of the run, which only its owner can read."""

CERTIFICATE_FILE = "controller_server_cert.pem"
"""Name of the file with the certificate of a controller with TLS."""

_MAX_BYTES = 1 << 16


class ControllerFiles(NamedTuple):
    """What clients read.

    Attributes:
        address: Address of the controller.
        token: Token of the run.
        certificate: Certificate in PEM; empty without TLS.
    """

    address: str
    token: str
    certificate: str


def write_files(model_dir: str, files: ControllerFiles) -> None:
    """Replace the files of a model directory, the address last.

    Raises:
        OpError: A file cannot be written.
    """
    try:
        if (folder := local_path(model_dir)) is not None:
            os.makedirs(folder, exist_ok=True)
            _write_secret(folder, files.token)
        else:
            open_folder(model_dir).replace(TOKEN_FILE, files.token.encode())
        if files.certificate:
            open_folder(model_dir).replace(CERTIFICATE_FILE, files.certificate.encode())
        else:
            _remove(model_dir, CERTIFICATE_FILE)
        open_folder(model_dir).replace(ADDRESS_FILE, files.address.encode())
    except OSError as error:
        raise OpError(
            f"[control] expected to write the address of the controller, got {error} ({model_dir})"
        ) from error


def _write_secret(folder: str, token: str) -> None:
    number, path = tempfile.mkstemp(prefix=f".{TOKEN_FILE}-", dir=folder)  # of mode 0600
    try:
        with open(number, "w") as file:
            file.write(token)
        os.replace(path, os.path.join(folder, TOKEN_FILE))
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        raise


def read_files(model_dir: str) -> ControllerFiles:
    """Read the files of a model directory.

    Raises:
        NotFoundError: No controller has written an address there.
        OpError: A file cannot be read.
    """
    address = _read(model_dir, ADDRESS_FILE)
    if not address:
        raise NotFoundError(
            f"[control] expected the file {ADDRESS_FILE} of a run with a controller, got none at "
            f"{model_dir!r}; the run has ended, saves into another folder, or was started without "
            "--control"
        )
    return ControllerFiles(
        address, _read(model_dir, TOKEN_FILE), _read(model_dir, CERTIFICATE_FILE)
    )


def remove_files(model_dir: str, address: str) -> None:
    """Remove the files, unless another controller has written its own by now."""
    if _read(model_dir, ADDRESS_FILE) == address:
        for name in (ADDRESS_FILE, TOKEN_FILE, CERTIFICATE_FILE):
            _remove(model_dir, name)


def _remove(model_dir: str, name: str) -> None:
    system, inner = open_store(posixpath.join(model_dir, name))
    with contextlib.suppress(FileNotFoundError):
        system.rm(inner)


def _read(model_dir: str, name: str) -> str:
    """Return the text of a file; empty if there is none."""
    path = posixpath.join(model_dir, name)
    try:
        system, inner = open_store(path)
        data: bytes = system.cat_file(inner)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise OpError(f"[control] expected to read {path}, got {error}") from error
    return data[:_MAX_BYTES].decode(errors="replace").strip()
