import pytest

from monolith.errors import DataLossError
from monolith.native_training.ops.layout_messages import decode_feature_configs
from monolith.util.protobuf import put_bytes, put_varint

TABLE, DIMS = put_bytes(1, b"t"), put_bytes(3, b"\x01")


A = put_bytes(1, b"a")


def feature(body, key=A):
    return put_bytes(1, key + put_bytes(2, body))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (put_varint(1, 1 << 45), "expected field 1 of bytes, got a number"),
        (feature(TABLE + DIMS, put_varint(1, 3)), "expected field 1 of bytes, got a number"),
        (feature(TABLE + DIMS, put_bytes(1, b"\xff")), "expected field 1 of UTF-8, got"),
        (feature(TABLE + DIMS + put_bytes(4, b"x")), "expected field 4 of a number, got bytes"),
        (feature(TABLE + put_bytes(3, b"\x01\x82")), "expected a whole varint at byte 1, got none"),
        (feature(TABLE + put_bytes(3, b"\x81" * 20)), "expected a whole varint at byte 0"),
    ],
)
def test_bytes_that_are_no_configs_are_refused(message, text):
    with pytest.raises(DataLossError, match=text):
        decode_feature_configs(message)


def test_dimensions_may_be_packed_or_not():
    made = decode_feature_configs(feature(TABLE + put_varint(3, 2) + put_bytes(3, b"\x01\x04")))
    assert made.feature_configs["a"].slice_dims == (2, 1, 4)
