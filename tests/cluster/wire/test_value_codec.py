import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.cluster.wire.value_codec import MAX_INLINE_BYTES, bytes_of, decode, encode
from monolith.errors import InvalidArgumentError

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda items: (
        st.lists(items) | st.lists(items).map(tuple) | st.dictionaries(st.text(), items, max_size=5)
    ),
)


def passed(value):
    body, columns = encode(value)
    return decode(body, [bytes_of(column) for column in columns])


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bytes(bytes_of(a)) == bytes(bytes_of(b))


@given(plain)
def test_plain_values_arrive_as_they_were(value):
    assert passed(value) == value


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float32, torch.int64, torch.int32, torch.bool, torch.float16, torch.bfloat16),
        *(torch.uint8, torch.float64, torch.int16, torch.int8),
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (70, 70)])
def test_tensors_arrive_as_they_were(dtype, shape):
    tensor = (torch.rand(shape) * 100).to(dtype)
    assert same(passed(tensor), tensor)


def test_a_view_arrives_as_its_own_elements():
    tensor = torch.arange(12.0).view(3, 4).t()
    assert torch.equal(passed(tensor), tensor)


def test_one_element_of_a_column_arrives():
    assert passed(torch.arange(6).view(2, 3)[:1, 2]).tolist() == [2]


def test_a_large_tensor_is_a_column_that_shares_its_memory():
    tensor = torch.zeros(MAX_INLINE_BYTES)
    (column,) = encode(tensor)[1]
    assert column.data_ptr() == tensor.data_ptr()


def test_small_tensors_go_to_the_body_until_it_is_full():
    small = torch.zeros(MAX_INLINE_BYTES // 2, dtype=torch.uint8)
    assert len(encode([small, small, small])[1]) == 1


def test_a_tensor_after_text_of_any_length_is_aligned():
    for length in range(9):
        (_, tensor) = passed(("x" * length, torch.arange(3)))
        assert tensor.data_ptr() % 8 == 0
        assert tensor.tolist() == [0, 1, 2]


def test_a_column_that_is_not_aligned_is_copied():
    body, _ = encode(torch.zeros(MAX_INLINE_BYTES))
    memory = memoryview(bytearray(4 * MAX_INLINE_BYTES + 1))
    assert decode(body, [memory[1:]]).data_ptr() % 4 == 0


def test_a_column_is_not_copied_where_it_can_be_used():
    body, _ = encode(torch.zeros(MAX_INLINE_BYTES))
    memory = torch.ones(MAX_INLINE_BYTES)
    assert decode(body, [bytes_of(memory)]).data_ptr() == memory.data_ptr()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "a plain value, got object"),
        (1 << 64, "ints in"),
        (-(1 << 63) - 1, "ints in"),
        ({1: 2}, "dicts with names, got key 1"),
        (torch.zeros(2, dtype=torch.complex64), "dtype that travels"),
        (torch.zeros([1] * 9), "at most 8 dimensions"),
    ],
)
def test_what_does_not_travel_is_refused(value, text):
    with pytest.raises(TypeError, match=text):
        encode([value])


def wire(*values):
    return encode(values)[0]


COUNT = (1 << 32) - 1


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "1 bytes at byte 0"),
        (b"?", "tag of a value, got 63"),
        (b"NN", "a value of 2 bytes, got one of 1"),
        (b"i\1\2", "8 bytes"),
        (b"s\5\0\0\0abc", "at most 3 items, got 5"),
        (b"[\xff\xff\xff\xff", f"at most 0 items, got {COUNT}"),
        (b"s\1\0\0\0\xff", "text in UTF-8"),
        (b"{\1\0\0\0N", "a name in a dict"),
        (b"{\2\0\0\0s\1\0\0\0aNs\1\0\0\0aN", "different names in a dict, got 'a'"),
        (b"(\1\0\0\0" * 17 + b"N", "at most 16 levels"),
        (b"t\x20\1" + bytes(8), "the dtype and dimensions"),
        (b"t\0\x09" + bytes(72), "the dtype and dimensions"),
        (b"t\0\1" + (1 << 60).to_bytes(8, "little"), "bytes at byte"),
        (b"t\0\2" + bytes(8) + b"\xff" * 8 + bytes(5), "small sizes of an empty tensor"),
        (b"c\0\1" + bytes(8), "at most 0 columns"),
        (b"t\3\1\1" + bytes(7) + bytes(5) + b"\2", "bools of 0 and 1, got a byte of 2"),
    ],
)
def test_bytes_that_are_no_value_are_refused(body, text):
    with pytest.raises(InvalidArgumentError, match=text):
        decode(body)


def test_columns_must_have_the_bytes_of_their_tensors():
    body, columns = encode(torch.zeros(MAX_INLINE_BYTES))
    with pytest.raises(InvalidArgumentError, match="a column of 65536 bytes, got one of 65535"):
        decode(body, [bytes_of(columns[0])[1:]])


def test_columns_that_no_tensor_has_are_refused():
    with pytest.raises(InvalidArgumentError, match="with 1 columns, got one with 0"):
        decode(b"N", [b"abc"])


@given(st.binary(max_size=200))
def test_random_bytes_are_a_value_or_refused(body):
    try:
        value = decode(body)
    except InvalidArgumentError:
        return
    encode(value)


@given(st.data())
def test_changed_bytes_are_a_value_or_refused(data):
    body = bytearray(wire(1, "name", [2.0, None], {"a": torch.arange(3)}, (True, b"xyz")))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidArgumentError):
        decode(bytes(body))
