"""Rules of a table: admission of new keys, expiry of rows, and the memory budget."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from monolith.table.arguments import as_integer, check_kind

NUM_SLOTS = 1 << 15
"""Number of slots of the fid v2 format."""


def slot_of(key: int) -> int:
    """Return the slot of any int64 key: bits 48 to 62, the rule of fids v2.

    Example:
        >>> slot_of((7 << 48) | 123), slot_of(-1)
        (7, 32767)
    """
    return (key >> 48) & (NUM_SLOTS - 1)


def check_int(where: str, name: str, value: object, low: int, high: int) -> None:
    """Refuse a value that is no integer in [low, high]."""
    number = as_integer(f"[{where}]", name, value)
    if not low <= number <= high:
        raise ValueError(f"[{where}] expected {name} in [{low}, {high}], got {number}")


def check_slots(
    where: str, name: str, slots: Mapping[int, int], low: int, high: int
) -> dict[int, int]:
    """Return the numbers by slot, ascending; refuse slots or numbers out of range."""
    if not isinstance(slots, Mapping):
        raise TypeError(f"[{where}] expected slots as slot -> {name}, got {slots!r}")
    for slot, value in slots.items():
        check_int(where, "slots", slot, 0, NUM_SLOTS - 1)
        check_int(where, f"{name} of slot {slot}", value, low, high)
    return {int(slot): int(slots[slot]) for slot in sorted(slots)}


_MAX_THRESHOLD = (1 << 31) - 1
_MAX_FILTER_THRESHOLD = (1 << 20) - 1  # a filter's counters have 20 bits
_MAX_SHARDS = 1 << 12  # a routing has no more
_MAX_SPLITS = 300  # a ring has at least 300 cells, so that every split has a cell
_MAX_BYTES = 1 << 46


@dataclass(frozen=True)
class _Thresholds:
    threshold: int = 0
    slots: Mapping[int, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        self._check(_MAX_THRESHOLD)

    def _check(self, most: int) -> None:
        where = type(self).__name__
        check_int(where, "threshold", self.threshold, 0, most)
        slots = check_slots(where, "threshold", self.slots, 0, most)
        object.__setattr__(self, "slots", slots)

    def threshold_of(self, key: int) -> int:
        """Return the threshold of the key's slot."""
        return self.slots.get(slot_of(key), self.threshold)


@dataclass(frozen=True)
class MinCount(_Thresholds):
    """Admits a key after `threshold` occurrences in earlier calls. Exact.

    A candidate is (key, count, time). Candidates are kept per partition of the key space, each with
    an equal share of the bytes. A full partition drops its least recently seen candidate, and
    counts the drop.

    Args:
        threshold: number of occurrences before a key is admitted; 0 admits at once.
        slots: slot -> threshold, for slots with another threshold.
        max_bytes: bytes for candidates, counted as 16 each.
        ttl_seconds: time without occurrence after which a candidate starts again at 0; None means
            never.

    Example:
        >>> MinCount(3, slots={7: 0}).threshold_of(7 << 48)
        0
    """

    max_bytes: int = 1 << 28
    ttl_seconds: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("MinCount", "max_bytes", self.max_bytes, 1, _MAX_BYTES)
        if self.ttl_seconds is not None:
            check_int("MinCount", "ttl_seconds", self.ttl_seconds, 1, (1 << 32) - 1)


@dataclass(frozen=True)
class SlidingFilter(_Thresholds):
    """Counts keys approximately in a ring of filters that forgets the oldest: for huge streams.

    Two keys may share a counter, so a key may be admitted early, never late.

    Args:
        threshold: number of occurrences before a key is admitted; 0 admits at once.
        slots: slot -> threshold, for slots with another threshold.
        capacity: number of keys in the filters, at least 300 for each of the 4,096 partitions.
        split_num: number of filters of a ring, at least 5; one filter is forgotten at a time.
        num_shards: number of shards that each have filters of their own for an equal part of the
            capacity; `ShardedTable` sets it with `FloorModRouting`. Filters of all other tables are
            those of the whole table.

    Example:
        >>> SlidingFilter(3, capacity=1_000_000).split_num
        7
    """

    capacity: int = 300_000_000
    split_num: int = 7
    num_shards: int = 1

    def __post_init__(self) -> None:
        self._check(_MAX_FILTER_THRESHOLD)
        check_int("SlidingFilter", "capacity", self.capacity, 1, 1 << 40)
        check_int("SlidingFilter", "split_num", self.split_num, 1, _MAX_SPLITS)
        check_int("SlidingFilter", "num_shards", self.num_shards, 1, _MAX_SHARDS)

    def of_shard(self) -> "SlidingFilter":
        """Return the rule of one of the shards."""
        return replace(self, capacity=max(1, self.capacity // self.num_shards), num_shards=1)


@dataclass(frozen=True)
class Probabilistic(_Thresholds):
    """Admits a missing key at random in each call; stores no candidates.

    Args:
        threshold: t. A key with c occurrences in the call is admitted with probability min(1, c /
            t); 0 admits at once.
        slots: slot -> threshold, for slots with another threshold.
        equal_probability: whether the probability is 1 - 0.05 ** (c / t) instead, so that 95 % of
            the keys are admitted after t single occurrences.

    Example:
        >>> Probabilistic(10).equal_probability
        False
    """

    equal_probability: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind("[Probabilistic]", "equal_probability", self.equal_probability, bool)


Admission = MinCount | SlidingFilter | Probabilistic
"""Rules that decide which missing keys get a row."""


EMPTY_TABLE_BYTES = 4096
"""Largest number of bytes of a table without rows."""

_POLICIES = ("refuse", "evict_oldest", "evict_least_frequent")


@dataclass(frozen=True)
class Budget:
    """Bound on `memory_report()["total_bytes"]`: rows, index and candidates.

    Args:
        max_bytes: the bound; at least one row and 4,096 bytes for the table itself.
        policy: effect of a new key at the bound. "refuse": the key gets no row, and is counted as
            refused. "evict_oldest": of 16 sampled rows, the row with the smallest update time is
            removed. "evict_least_frequent": of 16 sampled rows, the row with the fewest uses is
            removed. A use is a writing call; at most 255 count, and every 8th sampling halves the
            uses of its 16 rows.

    Example:
        >>> Budget(1 << 30, "evict_oldest").policy
        'evict_oldest'
    """

    max_bytes: int
    policy: str = "refuse"

    def __post_init__(self) -> None:
        check_int("Budget", "max_bytes", self.max_bytes, 1, 1 << 60)
        if self.policy not in _POLICIES:
            expected = "'refuse', 'evict_oldest' or 'evict_least_frequent'"
            raise ValueError(f"[Budget] expected policy {expected}, got {self.policy!r}")


SECONDS_PER_DAY = 86_400
_MAX_DAYS = (1 << 31) - 1


@dataclass(frozen=True)
class Expiry:
    """Expires a row `days` after its last update; `Table.evict` removes expired rows.

    With 0 days, every row is always expired.

    Args:
        days: life of a row.
        slots: slot -> days, for slots with another life.

    Example:
        >>> Expiry(14, slots={1: 5}).seconds_of((1 << 48) | 123)
        432000
    """

    days: int = 36_500
    slots: Mapping[int, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_int("Expiry", "days", self.days, 0, _MAX_DAYS)
        object.__setattr__(self, "slots", check_slots("Expiry", "days", self.slots, 0, _MAX_DAYS))

    def seconds_of(self, key: int) -> int:
        """Return the life of the key's row in seconds."""
        return self.slots.get(slot_of(key), self.days) * SECONDS_PER_DAY

    def is_expired(self, keys: torch.Tensor, times: torch.Tensor, reference: int) -> torch.Tensor:
        """Return whether rows are expired at a time, bool (n,).

        Args:
            keys: keys, int64 (n,).
            times: times of the last updates, int64 (n,).
            reference: time of the test.
        """
        if not self.slots:
            return reference - times >= self.days * SECONDS_PER_DAY
        days = torch.full((NUM_SLOTS,), self.days, dtype=torch.int64, device="cpu")
        days[list(self.slots)] = torch.tensor(list(self.slots.values()), device="cpu")
        return reference - times >= days[(keys >> 48) & (NUM_SLOTS - 1)] * SECONDS_PER_DAY


_LEAST_CAPACITY = 300
_LEAST_SPLITS = 5
RING_SLACK = 64  # cells after the last start, so that probing does not wrap


def ring_shape(capacity: int, split_num: int) -> tuple[int, int, int]:
    """Return the filters of a ring, the keys per filter, and the cells per filter."""
    size = max(split_num, _LEAST_SPLITS)
    split_capacity = max(capacity, _LEAST_CAPACITY) // (size - 1)
    return size, split_capacity, split_capacity * 6 // 5 + RING_SLACK
