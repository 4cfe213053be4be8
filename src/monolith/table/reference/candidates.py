"""Admission of keys in plain Python: the exact map, the sliding filter and the random rule.

Each class decides about one missing key of a call, and returns its state as columns. The caller
holds the table's lock.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from monolith.table.config import NUM_PARTITIONS, TableConfig
from monolith.table.initializers import key_hash, philox
from monolith.table.reference.cuckoo_filter import FilterRing
from monolith.table.rules import Admission, MinCount, Probabilistic, SlidingFilter

Columns = dict[str, NDArray[np.int64]]

_STREAM = 2  # number of the generator's stream; 0 is for initial values, 1 for rounding
_CANDIDATE_BYTES = 16
_MAX_COUNT = (1 << 32) - 1


class Question(NamedTuple):
    """A missing key of a call.

    Attributes:
        key: missing key.
        num_occurrences: number of occurrences in the call.
        now: time of the call.
        call: number of the call.
        may_grow: whether a refused key may be stored as a candidate.
    """

    key: int
    num_occurrences: int
    now: int
    call: int
    may_grow: bool = True


class AdmitAll:
    """Admits every key. Base of the other rules.

    Args:
        rule: rule with the thresholds, or None.
    """

    num_dropped = 0
    num_overflows = 0
    num_candidates = 0
    num_bytes = 0
    growth_bytes = 0
    """Largest growth by one more stored key, in bytes."""

    def __init__(self, rule: Admission | None = None) -> None:
        self._thresholds = rule

    def has_rule(self, key: int) -> bool:
        """Whether admission of the key depends on the rule."""
        return self._thresholds is not None and self._thresholds.threshold_of(key) > 0

    def ask(self, question: Question) -> bool:
        """Return whether the key gets a row."""
        return True

    def columns(self, partitions: Sequence[int]) -> Columns:
        """Return the state of some partitions."""
        return {}

    def load(self, columns: Columns, may_grow: Callable[[], bool]) -> None:
        """Import checked columns; candidates without room count as dropped."""

    def clear(self) -> None:
        """Remove all state."""


class _Candidate(NamedTuple):
    num_seen: int
    time: int


class _CandidateMap(AdmitAll):
    """Candidates of `MinCount`: partition -> key -> candidate, the least recently seen first."""

    growth_bytes = _CANDIDATE_BYTES

    def __init__(self, rule: MinCount) -> None:
        super().__init__(rule)
        self._rule = rule
        self._max_candidates = max(1, rule.max_bytes // _CANDIDATE_BYTES // NUM_PARTITIONS)
        self._partitions: dict[int, dict[int, _Candidate]] = {}
        self.num_dropped = 0

    @property
    def num_candidates(self) -> int:  # type: ignore[override]
        """Number of candidates."""
        return sum(map(len, self._partitions.values()))

    @property
    def num_bytes(self) -> int:  # type: ignore[override]
        """Number of bytes of the candidates."""
        return _CANDIDATE_BYTES * self.num_candidates

    def ask(self, question: Question) -> bool:
        key, now = question.key, question.now
        candidates = self._partitions.setdefault(key_hash(key) >> 52, {})
        old = candidates.pop(key, None)
        count, time = old or (0, now)
        ttl = self._rule.ttl_seconds
        if ttl is not None and now - time >= ttl:
            count = 0
        if count >= self._rule.threshold_of(key):
            return True
        if old or question.may_grow:
            self._put(key, min(count + question.num_occurrences, _MAX_COUNT), max(time, now))
        return False

    def _put(self, key: int, count: int, time: int) -> None:
        candidates = self._partitions.setdefault(key_hash(key) >> 52, {})
        candidates.pop(key, None)
        candidates[key] = _Candidate(count, time)
        if len(candidates) > self._max_candidates:
            del candidates[next(iter(candidates))]
            self.num_dropped += 1

    def columns(self, partitions: Sequence[int]) -> Columns:
        rows = [
            (key, *candidate)
            for partition in partitions
            for key, candidate in self._partitions.get(partition, {}).items()
        ]
        return _int64_columns(("key", "count", "time"), rows)

    def load(self, columns: Columns, may_grow: Callable[[], bool]) -> None:
        for key, count, time in zip(*(columns[n].tolist() for n in columns), strict=True):
            if key in self._partitions.get(key_hash(key) >> 52, {}) or may_grow():
                self._put(key, count, time)
            else:
                self.num_dropped += 1

    def clear(self) -> None:
        self._partitions.clear()


class _FilterRings(AdmitAll):
    """State of `SlidingFilter`: partition -> ring of filters."""

    def __init__(self, rule: SlidingFilter) -> None:
        super().__init__(rule)
        self._rule = rule
        self._rings: dict[int, FilterRing] = {}
        self._cleared = (0, 0)  # drops and overflows of removed rings
        self.growth_bytes = self._new_ring().num_bytes

    def _new_ring(self) -> FilterRing:
        return FilterRing(self._rule.capacity // NUM_PARTITIONS, self._rule.split_num)

    def _ring(self, partition: int, may_grow: bool) -> FilterRing | None:
        """Return the ring of a partition, or None if there is no ring and no room for one."""
        if partition not in self._rings and may_grow:
            self._rings[partition] = self._new_ring()
        return self._rings.get(partition)

    @property
    def num_dropped(self) -> int:  # type: ignore[override]
        """Number of counts that were dropped when a filter was reused."""
        return self._cleared[0] + sum(ring.num_dropped for ring in self._rings.values())

    @property
    def num_overflows(self) -> int:  # type: ignore[override]
        """Number of keys that were admitted because no counter was free."""
        return self._cleared[1] + sum(ring.num_overflows for ring in self._rings.values())

    @property
    def num_candidates(self) -> int:  # type: ignore[override]
        """Number of used counters."""
        return sum(sum(ring.num_elements) for ring in self._rings.values())

    @property
    def num_bytes(self) -> int:  # type: ignore[override]
        """Number of bytes of the filters."""
        return sum(ring.num_bytes for ring in self._rings.values())

    def ask(self, question: Question) -> bool:
        hash_of_key = key_hash(question.key)
        ring = self._ring(hash_of_key >> 52, question.may_grow)
        if ring is None:
            return False
        count = ring.add(hash_of_key, question.num_occurrences)
        return count is None or count >= self._rule.threshold_of(question.key)

    def columns(self, partitions: Sequence[int]) -> Columns:
        rows = [
            (partition, *row)
            for partition in partitions
            if partition in self._rings
            for row in self._rings[partition].rows()
        ]
        return _int64_columns(("partition", "split", "cell", "value"), rows)

    def load(self, columns: Columns, may_grow: Callable[[], bool]) -> None:
        for partition, *row in zip(*(columns[n].tolist() for n in columns), strict=True):
            ring = self._ring(partition, may_grow())
            if ring is not None:
                ring.load(*row)
            elif row[0] >= 0:
                self._cleared = (self._cleared[0] + 1, self._cleared[1])

    def clear(self) -> None:
        self._cleared = (self.num_dropped, self.num_overflows)
        self._rings.clear()


class _Dice(AdmitAll):
    """Rule of `Probabilistic`: one random word per (seed, key, number of the call)."""

    def __init__(self, rule: Probabilistic, seed: int) -> None:
        super().__init__(rule)
        self._rule, self._seed = rule, seed

    def ask(self, question: Question) -> bool:
        key, count = question.key, question.num_occurrences
        threshold = self._rule.threshold_of(key)
        words = [word & 0xFFFFFFFF for word in (key, key >> 32, question.call, _STREAM)]
        seed = (self._seed & 0xFFFFFFFF, self._seed >> 32)
        word = int(philox(np.array(words, np.uint64), seed)[0])
        if self._rule.equal_probability:
            return word * 2.0**-32 >= math.pow(0.05, count / threshold)
        return word * threshold < 0xFFFFFFFF * count


def _int64_columns(names: Sequence[str], rows: Sequence[tuple[int, ...]]) -> Columns:
    values = np.array(rows, np.int64).reshape(-1, len(names))
    return {name: values[:, i].copy() for i, name in enumerate(names)}


def make_admission(config: TableConfig) -> AdmitAll:
    """Return the admission of a table; a serving table admits every key."""
    rule = None if config.kind == "serving" else config.admission
    if isinstance(rule, MinCount):
        return _CandidateMap(rule)
    if isinstance(rule, SlidingFilter):
        return _FilterRings(rule)
    assert config.seed is not None  # the config's constructor sets the seed
    return AdmitAll() if rule is None else _Dice(rule, config.seed)
