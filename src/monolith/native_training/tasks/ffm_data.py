"""Make random samples for factorization machines, as `tf.train.Example` records."""

import struct
from collections.abc import Sequence

import numpy as np

from monolith.util.protobuf import put_bytes, varint


def slot_to_key(slot: int) -> str:
    """The name of a slot's feature.

    Example:
        >>> slot_to_key(3)
        'feature_3'
    """
    return f"feature_{slot}"


def generate_ffm_example(
    vocab_sizes: Sequence[int], length: int = 5, *, label_high: int = 1
) -> bytes:
    """The bytes of a random `tf.train.Example`: a label, and ids of each slot.

    Slot i has 1 to `length` ids in [max * i, max * i + its size), where max is the largest size.
    Numbers are drawn from NumPy's global generator: label, then count and ids of each slot.

    Args:
        vocab_sizes: number of ids of each slot.
        length: most ids of a slot.
        label_high: labels are integers from 0 up to it, itself excluded; 2 gives binary ones.

    Example:
        >>> np.random.seed(0)
        >>> len(generate_ffm_example([2], 1))
        41
    """
    largest = max(vocab_sizes, default=0)
    label = np.random.randint(0, label_high)
    entries = {"label": put_bytes(2, put_bytes(1, struct.pack("<f", label)))}
    for slot, size in enumerate(vocab_sizes):
        count = np.random.randint(1, length + 1)
        first = largest * slot
        ids = np.random.randint(first, first + size, size=count)
        packed = b"".join(varint(int(number)) for number in ids)
        entries[slot_to_key(slot)] = put_bytes(3, put_bytes(1, packed))
    features = b"".join(
        put_bytes(1, put_bytes(1, name.encode()) + put_bytes(2, feature))
        for name, feature in sorted(entries.items())
    )
    return put_bytes(1, features)
