import numpy as np
import pytest
import torch

from monolith.table import Segment, TableConfig, Uniform
from monolith.table.initializers import key_hash, key_hashes, partitions_of, philox, uniform
from monolith.table.reference import ReferenceTable
from tests.suites.table_base import EDGE_KEYS, keys_of_hashes, random_keys


def philox_of_integers(counter, key):
    """Philox4x32-10 in Python integers, as an oracle."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 1 << 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % (1 << 32), (k1 + 0xBB67AE85) % (1 << 32)
    return [c0, c1, c2, c3]


# Known answers of the Random123 distribution.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, expected):
    assert philox(np.array(counter, np.uint64), key).tolist() == list(expected)
    assert philox_of_integers(counter, key) == list(expected)


def test_uniform_is_philox_of_key_and_column():
    seed, columns = 0xFEDCBA9876543210, [0, 1, 6, 7, 9, 4]
    u = uniform(seed, np.array(EDGE_KEYS), np.array(columns))
    for i, key in enumerate(EDGE_KEYS):
        low, high = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
        for j, column in enumerate(columns):
            words = philox_of_integers((low, high, column // 4, 0), (0x76543210, 0xFEDCBA98))
            assert u[i, j] == (words[column % 4] >> 8) * 2.0**-24


def test_uniform_streams_differ():
    numbers = np.arange(10)
    assert (uniform(1, numbers, numbers) != uniform(1, numbers, numbers, stream=1)).any()
    words = philox_of_integers((3, 0, 0, 1), (1, 0))
    assert uniform(1, np.array([3]), np.array([0]), stream=1)[0, 0] == (words[0] >> 8) * 2.0**-24


def test_uniform_lies_in_its_range_and_is_spread_evenly():
    u = uniform(7, np.arange(5000), np.arange(20))
    assert u.dtype == np.float32
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, bins=10, range=(0, 1))[0]
    assert abs(counts - 10_000).max() < 500


def test_uniform_of_nothing_is_empty():
    assert uniform(7, np.empty(0, np.int64), np.arange(3)).shape == (0, 3)


# Pinned: a change of these numbers changes every table in the field.
def test_initial_values_are_pinned():
    config = TableConfig("user", Segment(5, initializer=Uniform(-0.05, 0.05)))
    row = ReferenceTable(config).lookup(torch.tensor([-12345]))
    words = row.numpy().view(np.uint32)[0].tolist()
    assert words == [0xBC0B1B68, 0x3B960768, 0xBD060034, 0x3C956E0A, 0xBBD37450]


@pytest.mark.parametrize(
    ("key", "expected"),
    [(0, 0), (1, 0x5692161D100B05E5), (-1, 0xB4D055FCF2CBBD7B)],
)
def test_key_hash_known_answers(key, expected):
    assert key_hash(key) == expected


def test_key_hashes_equal_key_hash():
    numbers = random_keys(100).numpy()
    assert key_hashes(numbers).tolist() == [key_hash(key) for key in numbers.tolist()]


def test_key_hash_is_inverted_by_the_suite():
    hashes = random_keys(1000, seed=1).numpy().view(np.uint64)
    assert (key_hashes(keys_of_hashes(hashes).numpy()) == hashes).all()


def test_partition_is_the_top_of_the_hash():
    numbers = random_keys(100).numpy()
    assert partitions_of(numbers).tolist() == [key_hash(key) >> 52 for key in numbers.tolist()]
