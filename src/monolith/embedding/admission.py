"""Admission: which missing keys get a row. Plain data; `docs/admission.md` compares the rules.

A writing call asks once per distinct missing key, with the number of its occurrences in the call.
A key of a slot with threshold 0 is admitted without a question.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from monolith.embedding.arguments import check_kind
from monolith.embedding.slots import check_int, check_slots, slot_of

__all__ = ["Admission", "MinCount", "Probabilistic", "SlidingFilter"]

_MAX_THRESHOLD = (1 << 31) - 1
_MAX_FILTER_THRESHOLD = (1 << 20) - 1  # a filter's counters have 20 bits
_MAX_SPLITS = 300  # a ring has at least 300 cells, so that every split has one
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
        """Threshold of the key's slot."""
        return self.slots.get(slot_of(key), self.threshold)


@dataclass(frozen=True)
class MinCount(_Thresholds):
    """A key is admitted once it occurred `threshold` times in earlier calls. Exact.

    A candidate is (key, count, time). Candidates are kept per partition of the key space, each with
    an equal share of the bytes; at its cap the least recently seen candidate goes, counted.

    Args:
        threshold: occurrences before a key is admitted; 0 admits at once.
        slots: slot -> threshold, for slots that differ.
        max_bytes: bytes for candidates, counted as 16 each.
        ttl_seconds: a candidate that was not seen for so long starts again at 0; never if None.

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
    """Approximate counts in a ring of filters that forgets the oldest: for huge streams.

    Two keys may share a counter, so a key may come in early, never late.

    Args:
        threshold: occurrences before a key is admitted; 0 admits at once.
        slots: slot -> threshold, for slots that differ.
        capacity: keys that are remembered, at least 300 in each of the 4,096 partitions.
        split_num: filters of a ring, at least 5; one of them is forgotten at a time.

    Example:
        >>> SlidingFilter(3, capacity=1_000_000).split_num
        7
    """

    capacity: int = 300_000_000
    split_num: int = 7

    def __post_init__(self) -> None:
        self._check(_MAX_FILTER_THRESHOLD)
        check_int("SlidingFilter", "capacity", self.capacity, 1, 1 << 40)
        check_int("SlidingFilter", "split_num", self.split_num, 1, _MAX_SPLITS)


@dataclass(frozen=True)
class Probabilistic(_Thresholds):
    """Each call admits a missing key by chance; nothing is remembered.

    Args:
        threshold: t. A key with c occurrences in the call is admitted with probability
            min(1, c / t); 0 admits at once.
        slots: slot -> threshold, for slots that differ.
        equal_probability: the probability is 1 - 0.05 ** (c / t) instead, so that 95 % of the keys
            are in after t single occurrences.

    Example:
        >>> Probabilistic(10).equal_probability
        False
    """

    equal_probability: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind("[Probabilistic]", "equal_probability", self.equal_probability, bool)


Admission = MinCount | SlidingFilter | Probabilistic
"""How missing keys get a row."""
