import numpy as np
import pyarrow as pa
import pytest

from monolith.data import cross_ids, hash_strings

_M = 2**64 - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _rotl(x, r):
    return ((x << r) | (x >> (64 - r))) & _M


def _round(acc, word):
    return _rotl((acc + word * _P2) & _M, 31) * _P1 & _M


def xxh64(data, seed=0):
    """The definition, word by word."""
    at, n = 0, len(data)
    if n >= 32:
        acc = [(seed + _P1 + _P2) & _M, (seed + _P2) & _M, seed, (seed - _P1) & _M]
        while n - at >= 32:
            for i in range(4):
                word = int.from_bytes(data[at + 8 * i : at + 8 * i + 8], "little")
                acc[i] = _round(acc[i], word)
            at += 32
        h = sum(_rotl(a, r) for a, r in zip(acc, (1, 7, 12, 18), strict=True)) & _M
        for a in acc:
            h = ((h ^ _round(0, a)) * _P1 + _P4) & _M
    else:
        h = (seed + _P5) & _M
    h = (h + n) & _M
    while n - at >= 8:
        word = int.from_bytes(data[at : at + 8], "little")
        h = (_rotl(h ^ _round(0, word), 27) * _P1 + _P4) & _M
        at += 8
    if n - at >= 4:
        word = int.from_bytes(data[at : at + 4], "little")
        h = (_rotl(h ^ (word * _P1 & _M), 23) * _P2 + _P3) & _M
        at += 4
    for byte in data[at:]:
        h = _rotl(h ^ (byte * _P5 & _M), 11) * _P1 & _M
    h = (h ^ (h >> 33)) * _P2 & _M
    h = (h ^ (h >> 29)) * _P3 & _M
    return h ^ (h >> 32)


def unsigned(keys):
    return keys.view(np.uint64).tolist()


def test_published_vectors():
    got = unsigned(hash_strings(pa.array(["", "a", "abc"])))
    assert got == [0xEF46DB3751D8E999, 0xD24EC4F1A98C6E5B, 0x44BC2CF5AD770999]


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_every_length_agrees_with_the_definition(seed):
    strings = [bytes((7 * i + n) % 256 for i in range(n)) for n in range(100)]
    got = unsigned(hash_strings(pa.array(strings, pa.binary()), seed=seed))
    assert got == [xxh64(each, seed) for each in strings]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_all_types_of_strings_agree(kind):
    strings = pa.array(["x", "", "a longer one"]).cast(kind)
    assert (hash_strings(strings) == hash_strings(pa.array(["x", "", "a longer one"]))).all()


def test_a_slice_hashes_its_own_strings():
    strings = pa.array(["a", "bb", "ccc", "dddd"])
    assert (hash_strings(strings.slice(1, 2)) == hash_strings(strings)[1:3]).all()


def test_a_missing_string_hashes_as_an_empty_one():
    assert hash_strings(pa.array(["a", None]))[1] == hash_strings(pa.array([""]))[0]


def test_no_strings_give_no_keys():
    assert hash_strings(pa.array([], pa.string())).tolist() == []


def test_numbers_are_refused():
    with pytest.raises(TypeError, match=r"\[hash_strings\] expected .* got type int64"):
        hash_strings(pa.array([1]))


def _pair(a, b):
    data = a.to_bytes(8, "little", signed=True) + b.to_bytes(8, "little", signed=True)
    return np.uint64(xxh64(data)).view(np.int64)


def test_a_cross_has_all_combinations_of_a_sample():
    left = np.array([7, 8, 9]), np.array([1, 0, 2])
    right = np.array([1, 2, 5, -4]), np.array([2, 1, 1])
    values, lengths = cross_ids([left, right])
    assert lengths.tolist() == [2, 0, 2]
    assert values.tolist() == [_pair(7, 1), _pair(7, 2), _pair(8, -4), _pair(9, -4)]


def test_a_cross_of_three_goes_on_with_the_first_two():
    ones = np.ones(1, np.int64)
    values, _ = cross_ids([(np.array([i]), ones) for i in (1, 2, 3)])
    assert values.tolist() == [_pair(int(_pair(1, 2)), 3)]
