"""The frames of a message: a header of 80 bytes, a body, and columns.

Every length is checked against the frames before anything is read or allocated.
"""

import enum
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from monolith.cluster.wire.value_codec import MAX_COLUMNS, Buffer, decode, encode
from monolith.errors import InvalidArgumentError

MAGIC = b"MNLT"
VERSION = 1
"""Newest version of the protocol, and the one that clients speak."""
MAX_MESSAGE_BYTES = 1 << 34
MAX_BODY_BYTES = 64 << 20

_HEADER = struct.Struct("<4sHBBQQQQIHHIIQQQ")
HEADER_BYTES = _HEADER.size
_MAX_NUMBER = (1 << 63) - 1


class Kind(enum.IntEnum):
    """What a message is; clients send the first four."""

    HELLO = 1
    CALL = 2
    PING = 3
    GOODBYE = 4
    WELCOME = 5
    REPLY = 6
    ERROR = 7
    REFUSED = 8
    PONG = 9


class Header(NamedTuple):
    """The fixed fields of a message; `docs/wire.md` says what each is for each kind.

    Attributes:
        kind: what the message is.
        version: version of the protocol.
        client: who calls.
        sequence: number of the call among the client's.
        done: every call of the client below this number has its answer.
        life: number of the server's start that is meant, or that answers; 0 is any.
        host: the table set: number of a host of the server.
        verb: number of the verb.
        deadline_ms: milliseconds that the client waits; 0 means without limit.
        request: number of the message among those of the client's connection; answers have it too.
        received: bytes of answers that the client has taken so far.
    """

    kind: Kind
    version: int = VERSION
    client: int = 0
    sequence: int = 0
    done: int = 0
    life: int = 0
    host: int = 0
    verb: int = 0
    deadline_ms: int = 0
    request: int = 0
    received: int = 0


class Message(NamedTuple):
    """A message as it came, its value not yet read.

    Attributes:
        header: the fixed fields.
        body: bytes of the value.
        columns: memory of the large tensors.
    """

    header: Header
    body: Buffer
    columns: Sequence[Buffer]

    @property
    def num_bytes(self) -> int:
        """Bytes of all frames."""
        return HEADER_BYTES + len(self.body) + sum(map(len, self.columns))

    def value(self) -> Any:
        """Read the value.

        Raises:
            InvalidArgumentError: the bytes are no value.
        """
        return decode(self.body, self.columns)


class Packed(NamedTuple):
    """The value of a message that may be sent several times.

    Attributes:
        body: bytes of the value.
        columns: the large tensors, which nobody changes until the answer is here.
        num_bytes: bytes of body and columns.
    """

    body: bytes
    columns: list[torch.Tensor]
    num_bytes: int


def pack(value: Any) -> Packed:
    """Write a value.

    Raises:
        TypeError: a part of the value does not travel.
        InvalidArgumentError: the value is larger than a message may be.
    """
    body, columns = encode(value)
    num_bytes = len(body) + sum(t.numel() * t.element_size() for t in columns)
    check_size(num_bytes, len(body), len(columns))
    return Packed(body, columns, num_bytes)


def check_size(num_bytes: int, num_body: int, num_columns: int) -> None:
    """Refuse a message that is too large, or has too many columns."""
    if num_body > MAX_BODY_BYTES or num_bytes > MAX_MESSAGE_BYTES or num_columns > MAX_COLUMNS:
        raise InvalidArgumentError(
            f"[wire.message] expected at most {MAX_MESSAGE_BYTES} bytes, {MAX_BODY_BYTES} of them "
            f"in the body, and {MAX_COLUMNS} columns, got {num_bytes}, {num_body} and {num_columns}"
        )


def header_bytes(header: Header, packed: Packed) -> bytes:
    """Write the header of a message with this value."""
    return _HEADER.pack(
        MAGIC,
        header.version,
        header.kind,
        0,
        header.client,
        header.sequence,
        header.done,
        header.life,
        header.host,
        header.verb,
        len(packed.columns),
        header.deadline_ms,
        len(packed.body),
        packed.num_bytes - len(packed.body),
        header.request,
        header.received,
    )


def parse(frames: Sequence[Buffer]) -> Message:
    """Check frames that may come from anywhere; the value is read by `Message.value`.

    Raises:
        InvalidArgumentError: the frames are not exactly a message.
    """
    if len(frames) < 2:
        raise _refused("a header and a body", f"{len(frames)} frames")
    first = frames[0]
    if len(first) != HEADER_BYTES:
        raise _refused(f"a header of {HEADER_BYTES} bytes", str(len(first)))
    fields = _HEADER.unpack(first)
    magic, version, kind, flags, client, sequence, done, life, host, verb = fields[:10]
    num_columns, deadline_ms, num_body, num_column_bytes, request, received = fields[10:]
    if magic != MAGIC:
        raise _refused(f"the first bytes {MAGIC!r}", repr(magic))
    if not Kind.HELLO <= kind <= Kind.PONG or flags:
        raise _refused("a kind of message and flags 0", f"{kind} and {flags}")
    body, columns = frames[1], frames[2:]
    if (len(columns), len(body)) != (num_columns, num_body):
        raise _refused(
            f"{num_columns} columns and a body of {num_body} bytes",
            f"{len(columns)} and {len(body)}",
        )
    num_bytes = sum(map(len, columns))
    if num_bytes != num_column_bytes:
        raise _refused(f"columns of {num_column_bytes} bytes", str(num_bytes))
    check_size(num_bytes + num_body, num_body, num_columns)
    if max(client, sequence, life, request, received) > _MAX_NUMBER or done > sequence:
        raise _refused("numbers below 2**63, and answers below the call", "others")
    header = Header(
        *(Kind(kind), version, client, sequence, done, life, host, verb, deadline_ms),
        *(request, received),
    )
    return Message(header, body, columns)


def version_of(frames: Sequence[Buffer]) -> int | None:
    """Return the version of a message of any version; None for other bytes.

    The first six bytes, magic and version, are the same in all versions.
    """
    if frames and len(frames[0]) >= 6 and bytes(frames[0][:4]) == MAGIC:
        return int.from_bytes(frames[0][4:6], "little")
    return None


def _refused(expected: str, got: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"[wire.message] expected {expected}, got {got}")
