"""Keys of strings and of combined ids, stable on every machine and in every version."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from monolith.ops.compiled import load_native

_Keys = npt.NDArray[np.int64]


def hash_strings(strings: pa.Array, *, seed: int = 0) -> _Keys:
    """Return the XXH64 of each string as int64 with the same bits; a missing string is empty.

    Args:
        strings: Arrow array of strings or of bytes.
        seed: seed of the hash, 0 to 2**64 - 1.

    Raises:
        TypeError: the array has another type.

    Example:
        >>> hash_strings(pa.array(["abc", ""]))
        array([ 4952883123889572249, -1205034819632174695])
    """
    kind = strings.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offset_type: npt.DTypeLike = np.int32
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        offset_type = np.int64
    else:
        raise TypeError(f"[hash_strings] expected an array of strings or bytes, got type {kind}")
    keys = np.empty(len(strings), np.int64)
    if len(strings) == 0:
        return keys
    if strings.null_count:
        strings = strings.fill_null("" if "string" in str(kind) else b"")
    _, offsets, data = strings.buffers()
    splits = np.frombuffer(offsets, offset_type)[strings.offset :][: len(strings) + 1]
    splits = splits.astype(np.int64)  # an aligned copy
    address = 0 if data is None else data.address
    load_native().hash_strings(address, splits.ctypes.data, len(strings), seed, keys.ctypes.data)
    return keys


def cross_ids(rows: Sequence[tuple[_Keys, _Keys]]) -> tuple[_Keys, _Keys]:
    """Return the ids of all combinations of a sample's ids, one id of each column.

        user   [7]     [8]          # values, and lengths 1, 1
        item   [1, 2]  []           # lengths 2, 0
        cross  [(7,1), (7,2)]  []

    The id of two ids is the XXH64 of their 16 bytes; that of three ids combines the id of the first
    two with the third, and so on. The first column varies slowest.

    Args:
        rows: for each column, its values and the lengths of its rows.

    Returns:
        The values and the lengths of the rows.

    Example:
        >>> one = np.array([7, 8]), np.array([1, 1])
        >>> many = np.array([1, 2]), np.array([2, 0])
        >>> values, lengths = cross_ids([one, many])
        >>> len(values), lengths.tolist()
        (2, [2, 0])
    """
    (values, lengths), *others = rows
    for right, right_lengths in others:
        left_at, right_at = pairs(lengths, right_lengths)
        values = _hash_pairs(values[left_at], right[right_at])
        lengths = lengths * right_lengths
    return values, lengths


def pairs(left: _Keys, right: _Keys) -> tuple[_Keys, _Keys]:
    """Return the positions of the left and the right value of each combination."""
    per_left = np.repeat(right, left)  # number of combinations of each left value
    left_at = np.repeat(np.arange(left.sum()), per_left)
    first = np.repeat(np.cumsum(right) - right, left)  # position of the first partner
    begin = np.cumsum(per_left) - per_left
    return left_at, np.arange(len(left_at)) - np.repeat(begin - first, per_left)


def _hash_pairs(left: _Keys, right: _Keys) -> _Keys:
    both = np.ascontiguousarray(np.stack([left, right], axis=1), np.int64)
    keys = np.empty(len(left), np.int64)
    splits = np.arange(0, both.nbytes + 1, 16, dtype=np.int64)
    load_native().hash_strings(both.ctypes.data, splits.ctypes.data, len(left), 0, keys.ctypes.data)
    return keys
