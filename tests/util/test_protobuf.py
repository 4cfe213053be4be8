"""Protobuf messages by field numbers."""

import pytest

from monolith.errors import DataLossError
from monolith.util.protobuf import (
    fields,
    put_bytes,
    put_fixed32,
    put_fixed64,
    put_varint,
    signed,
    varint,
)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 1 << 40, (1 << 64) - 1])
def test_varints_come_back(number):
    assert list(fields(put_varint(5, number))) == [(5, number)]


def test_negative_numbers_take_ten_bytes_and_keep_their_sign():
    ((_, number),) = fields(put_varint(5, -3))
    assert (len(varint(-3)), signed(number), signed(7)) == (10, -3, 7)


def test_fields_come_in_order_with_their_bytes():
    message = put_bytes(1, b"ab") + put_fixed32(300, 1.0) + put_fixed64(2, 1.0)
    assert list(fields(message)) == [(1, b"ab"), (300, b"\x00\x00\x80?"), (2, bytes(6) + b"\xf0?")]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\x0b", "expected wire type 0, 1, 2 or 5, got 3"),
        (b"\x0a\x05ab", "expected 5 bytes of field 1, got 2"),
        (b"\x08\x80", "expected a whole varint at byte 1, got none"),
        (b"\x80" * 11 + b"\x01", "expected a whole varint at byte 0, got none"),
    ],
)
def test_bytes_that_are_no_message_are_refused(message, text):
    with pytest.raises(DataLossError, match=text):
        list(fields(message))
