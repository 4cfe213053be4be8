import contextlib
import hashlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.cluster.wire import message as wire
from monolith.cluster.wire.message import (
    HEADER_BYTES,
    Header,
    Kind,
    header_bytes,
    pack,
    parse,
    version_of,
)
from monolith.cluster.wire.value_codec import bytes_of
from monolith.errors import InvalidArgumentError

GOLDEN = Path(__file__).parents[2] / "golden" / "wire" / "version-1.json"

PUSH = Header(
    Kind.CALL,
    client=0x1122334455667788,
    sequence=9,
    done=8,
    life=77,
    host=3,
    verb=33,
    deadline_ms=30_000,
    request=12,
    received=4096,
)
VALUE = (
    torch.tensor([7, -1]),
    [0.5, 1],
    {"name": None, "flags": (True, False)},
    b"\0\1",
    (1 << 64) - 1,
    torch.ones(2, 1, dtype=torch.float16),
)


def frames_of(header, value):
    packed = pack(value)
    return [header_bytes(header, packed), packed.body, *map(bytes_of, packed.columns)]


def examples():
    """Frames of some messages, by name."""
    return {
        "hello": frames_of(Header(Kind.HELLO, client=5), {"index": 1, "num_servers": 3}),
        "call": frames_of(PUSH, VALUE),
        "column": frames_of(PUSH, (torch.arange(3000),)),
        "error": frames_of(Header(Kind.ERROR, request=2), {"class": "ValueError", "text": "é"}),
    }


def as_text(frame):
    """The bytes in hexadecimal, or the hash of many."""
    data = bytes(frame)
    return data.hex() if len(data) < 1024 else hashlib.sha256(data).hexdigest()


def test_the_bytes_of_version_1_stay():
    golden = json.loads(GOLDEN.read_text())
    assert {name: list(map(as_text, frames)) for name, frames in examples().items()} == golden


def test_a_message_arrives_as_it_was():
    message = parse(frames_of(PUSH, VALUE))
    keys, rates, names, data, big, grads = message.value()
    assert message.header == PUSH
    assert (keys.tolist(), rates, names, data, big) == ([7, -1], *VALUE[1:5])
    assert torch.equal(grads, VALUE[5])


def test_a_message_has_the_bytes_of_its_frames():
    frames = frames_of(PUSH, (torch.arange(3000),))
    assert parse(frames).num_bytes == sum(map(len, frames))


def changed(at, data):
    frames = frames_of(PUSH, 1)
    frames[0] = frames[0][:at] + data + frames[0][at + len(data) :]
    return frames


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([], "a header and a body, got 0 frames"),
        ([b"x" * HEADER_BYTES], "got 1 frames"),
        ([b"x", b""], "a header of 80 bytes, got 1"),
        (changed(0, b"HTTP"), "the first bytes b'MNLT', got b'HTTP'"),
        (changed(6, b"\0"), "a kind of message and flags 0, got 0 and 0"),
        (changed(6, b"\x0a"), "got 10 and 0"),
        (changed(7, b"\1"), "got 2 and 1"),
        (changed(15, b"\x80"), "numbers below 2"),
        (changed(24, b"\x0a"), "answers below the call"),
        (changed(46, b"\1"), "1 columns and a body of 9 bytes, got 0 and 9"),
        (changed(52, b"\x0a"), "a body of 10 bytes, got 0 and 9"),
        (changed(56, b"\1"), "columns of 1 bytes, got 0"),
    ],
)
def test_frames_that_are_no_message_are_refused(frames, text):
    with pytest.raises(InvalidArgumentError, match=text):
        parse(frames)


@pytest.mark.parametrize("size", [(0, (64 << 20) + 1, 0), ((1 << 34) + 1, 1, 1), (1, 1, 4097)])
def test_a_message_beyond_a_limit_is_refused(size):
    with pytest.raises(InvalidArgumentError, match="expected at most 17179869184 bytes"):
        wire.check_size(*size)


def test_a_value_beyond_a_limit_is_not_packed():
    with pytest.raises(InvalidArgumentError, match="4096 columns"):
        pack([torch.zeros(5000, dtype=torch.float32)] * 4097)


def test_the_version_is_read_from_messages_of_any_version():
    head = header_bytes(PUSH._replace(version=513), pack(None))
    assert version_of([head[:6]]) == 513


@pytest.mark.parametrize("frames", [[], [b"MNLT\1"], [b"HTTP/1.1 "]])
def test_other_bytes_have_no_version(frames):
    assert version_of(frames) is None


@given(st.data())
def test_changed_messages_are_read_or_refused(data):
    frames = [bytearray(f) for f in frames_of(PUSH, VALUE)]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = data.draw(st.sampled_from(frames))
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidArgumentError):
        parse([bytes(f) for f in frames]).value()
