import pytest

from monolith.errors import DataLossError
from monolith.util.tfrecord import tfrecord_frame, tfrecord_records

TWO = tfrecord_frame(b"ab") + tfrecord_frame(b"c")


def test_records_come_back_with_their_offsets():
    assert list(tfrecord_records(TWO, "f")) == [(0, b"ab"), (18, b"c")]


@pytest.mark.parametrize("size", [1, 11, 19, 30, 34])
def test_a_truncated_frame_is_refused(size):
    records = tfrecord_records(TWO[:size], "f")
    with pytest.raises(DataLossError, match=rf"\(f, record at byte {18 * (size > 18)}\)"):
        list(records)


@pytest.mark.parametrize("at", [0, 9, 12, 15])
def test_a_changed_byte_is_refused(at):
    data = TWO[:at] + bytes([TWO[at] ^ 1]) + TWO[at + 1 :]
    with pytest.raises(DataLossError, match=r"with (its|their) checksum, got others"):
        list(tfrecord_records(data, "f"))
