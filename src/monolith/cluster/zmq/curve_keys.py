"""CURVE keys of a job: one file for its servers and clients, which encrypts and authenticates."""

import json
import os
import stat
from dataclasses import asdict, dataclass, field, fields

from monolith.cluster.zmq.extra import load_zmq
from monolith.errors import InvalidArgumentError, NotFoundError

_FORMAT = "monolith-keys"
_VERSION = 1
_KEY_CHARACTERS = 40  # Z85 of 32 bytes


@dataclass(frozen=True)
class CurveKeys:
    """The keys of all servers and of all clients of a job, in Z85.

    Args:
        server_public: what clients know servers by.
        server_secret: of servers.
        client_public: what servers know clients by.
        client_secret: of clients.
    """

    server_public: str
    server_secret: str = field(repr=False)
    client_public: str
    client_secret: str = field(repr=False)

    @classmethod
    def new(cls) -> "CurveKeys":
        """Return new random keys."""
        zmq = load_zmq()
        pairs = [zmq.curve_keypair() for _ in range(2)]
        return cls(*(key.decode() for pair in pairs for key in pair))

    def write(self, path: str) -> None:
        """Write the keys to a new file that only its owner can read.

        Raises:
            FileExistsError: there is such a file; a job's keys are never replaced silently.
        """
        text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)}, indent=1)
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(number, "w", encoding="utf-8") as file:
            file.write(text + "\n")


def read_keys(path: str) -> CurveKeys:
    """Read the keys of a file.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: the file holds no keys, or other users of the machine can read it.
    """
    where = "[read_keys]"
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1 << 16)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise NotFoundError(
            f"{where} expected a file with keys, got none ({path}); make one with `monolith keys "
            f"new {path}`, and copy it to the machines of the job"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{where} expected a file of keys, got {error} ({path})") from (
            error
        )
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidArgumentError(
            f"{where} expected a file that only its owner can read, got mode "
            f"{stat.S_IMODE(mode):o} ({path}); run: chmod 600 {path}"
        )
    return _parse(where, text, path)


def _parse(where: str, text: str, path: str) -> CurveKeys:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{where} expected JSON, got {error} ({path})") from error
    names = [key.name for key in fields(CurveKeys)]
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise InvalidArgumentError(f"{where} expected a file of format {_FORMAT!r} ({path})")
    if document.get("version") != _VERSION:
        raise InvalidArgumentError(
            f"{where} expected version {_VERSION}, got {document.get('version')!r} ({path})"
        )
    zmq = load_zmq()
    from zmq.utils import z85

    for name in names:
        key = document.get(name)
        try:
            is_key = isinstance(key, str) and len(key) == _KEY_CHARACTERS and bool(z85.decode(key))
        except (KeyError, ValueError):  # a character, or a number, that Z85 does not have
            is_key = False
        if not is_key:
            raise InvalidArgumentError(
                f"{where} expected {name} as {_KEY_CHARACTERS} characters of Z85 ({path})"
            )
    for side in ("server", "client"):
        secret = document[f"{side}_secret"].encode()
        if zmq.curve_public(secret).decode() != document[f"{side}_public"]:
            raise InvalidArgumentError(
                f"{where} expected {side}_public of {side}_secret, got another key ({path})"
            )
    return CurveKeys(**{name: document[name] for name in names})
