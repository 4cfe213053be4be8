"""What every section of the table suite uses: construction, tensors, comparison, chosen keys."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import pytest
import torch

from monolith.table import Rows, Segment, TableConfig, Zeros
from monolith.table.base import BaseTable
from monolith.table.optimizers import SGD

NOW = 1_000_000
"""Time of the suite's clock."""

EDGE_KEYS = (-(1 << 63), -(1 << 63) + 1, -1, 0, 1, (1 << 32), (1 << 63) - 2, (1 << 63) - 1)

_MULTIPLIERS = (0x94D049BB133111EB, 0xBF58476D1CE4E5B9)


class TableCase:
    """Base of every section. An implementation sets `make`: (config, clock=) -> table."""

    make: ClassVar[Callable[..., BaseTable]]

    @pytest.fixture(autouse=True)
    def _close_tables(self):
        self._tables = []
        yield
        for table in self._tables:
            table.close()

    def build(self, config, clock=lambda: NOW, **options):
        """A table of this implementation, closed at the end of the test."""
        table = self.make(config, clock=clock, **options)
        self._tables.append(table)
        return table

    def table(self, dim=1, *, optimizer=None, initializer=None, clock=lambda: NOW, **options):
        """A table of one segment; SGD with rate 0.1 and zeros unless said otherwise."""
        segment = Segment(dim, optimizer or SGD(0.1), initializer or Zeros())
        return self.build(TableConfig("user", segment, **options), clock)


def keys(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


def floats(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def column(*numbers):
    """(n, 1) values of a table of dim 1."""
    return torch.tensor(numbers, dtype=torch.float32).reshape(-1, 1)


def read(table, *numbers):
    """Weights of a table of dim 1, as a list."""
    return table.lookup(keys(*numbers))[:, 0].tolist()


def times(table, *numbers):
    return table.lookup_entry(keys(*numbers)).rows.times.tolist()


def exported(table, **options):
    """All rows of an export as one chunk."""
    chunks = list(table.export(**options))
    if not chunks:
        return Rows(keys(), keys(), {})
    return Rows(
        torch.cat([chunk.keys for chunk in chunks]),
        torch.cat([chunk.times for chunk in chunks]),
        {name: torch.cat([c.columns[name] for c in chunks]) for name in chunks[0].columns},
    )


def assert_same_bits(a, b):
    """Equal tensors; floats by their bits, so that -0.0 is not 0.0 and NaN equals itself."""
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if a.is_floating_point():
        bits = {2: torch.int16, 4: torch.int32}[a.element_size()]
        a, b = a.view(bits), b.view(bits)
    assert torch.equal(a, b), f"{int((a != b).sum())} of {a.numel()} values differ"


def assert_equal_rows(a, b):
    """Two chunks with equal keys, times and columns, in the same order."""
    assert_same_bits(a.keys, b.keys)
    assert_same_bits(a.times, b.times)
    assert a.columns.keys() == b.columns.keys()
    for name in a.columns:
        assert_same_bits(a.columns[name], b.columns[name])


def assert_same_rows(a, b):
    """Two tables whose exports are equal in order and bit for bit."""
    assert len(a) == len(b)
    assert_equal_rows(exported(a), exported(b))


@contextmanager
def refuses(table, error, text):
    """The block raises `error` with exactly `text` and leaves rows and counters alone."""
    before, counters = exported(table), table.stats()
    with pytest.raises(error) as caught:
        yield
    assert str(caught.value) == text
    assert table.stats() == counters
    assert_equal_rows(exported(table), before)


def keys_of_hashes(hashes):
    """Inverse of the key hash: the int64 keys with these uint64 hashes."""
    x = np.asarray(hashes, np.uint64)
    for shift, multiplier in zip((31, 27), _MULTIPLIERS, strict=True):
        x = x ^ (x >> np.uint64(shift)) ^ (x >> np.uint64(2 * shift))
        x = x * np.uint64(pow(multiplier, -1, 1 << 64))
    x = x ^ (x >> np.uint64(30)) ^ (x >> np.uint64(60))
    return torch.from_numpy(x.view(np.int64).copy())


def random_keys(n, seed=0):
    """Random int64 keys, all of EDGE_KEYS among them where n allows; equal ones are unlikely."""
    generator = torch.Generator().manual_seed(seed)
    low, high = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    numbers = torch.randint(low, high, (n,), generator=generator)
    numbers[: len(EDGE_KEYS)] = keys(*EDGE_KEYS)[:n]
    return numbers[torch.randperm(n, generator=generator)]


def random_floats(n, dim, seed=0):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))
