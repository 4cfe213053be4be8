import dataclasses

import pytest

from monolith.table import (
    Budget,
    Expiry,
    MinCount,
    Probabilistic,
    Segment,
    SlidingFilter,
    TableConfig,
)
from monolith.table.initializers import key_hash
from monolith.table.optimizers import Adagrad
from monolith.table.reference.cuckoo_filter import FilterRing
from monolith.table.rules import slot_of


def assert_refused(error, text, make):
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("kind", "most"),
    [(MinCount, 2**31 - 1), (SlidingFilter, 2**20 - 1), (Probabilistic, 2**31 - 1)],
)
def test_impossible_thresholds(kind, most):
    name = kind.__name__
    for value in (-1, most + 1):
        text = f"[{name}] expected threshold in [0, {most}], got {value}"
        assert_refused(ValueError, text, lambda value=value: kind(value))
        text = f"[{name}] expected threshold of slot 3 in [0, {most}], got {value}"
        assert_refused(ValueError, text, lambda value=value: kind(1, {3: value}))
    for value in (2.0, None, "3"):
        text = f"[{name}] expected threshold as an integer, got {value!r}"
        assert_refused(TypeError, text, lambda value=value: kind(value))
    text = f"[{name}] expected slots as slot -> threshold, got [3]"
    assert_refused(TypeError, text, lambda: kind(1, [3]))


@pytest.mark.parametrize("make", [MinCount, SlidingFilter, Probabilistic, Expiry])
@pytest.mark.parametrize("slot", [-1, 32768])
def test_slots_outside_their_range(make, slot):
    text = f"[{make.__name__}] expected slots in [0, 32767], got {slot}"
    assert_refused(ValueError, text, lambda: make(1, slots={slot: 1}))


@pytest.mark.parametrize(
    ("make", "name", "value", "low", "high"),
    [
        (MinCount, "max_bytes", 0, 1, 1 << 46),
        (MinCount, "ttl_seconds", 0, 1, (1 << 32) - 1),
        (MinCount, "ttl_seconds", -5, 1, (1 << 32) - 1),
        (SlidingFilter, "capacity", 0, 1, 1 << 40),
        (SlidingFilter, "split_num", 0, 1, 300),
        (SlidingFilter, "split_num", 301, 1, 300),
        (Expiry, "days", -1, 0, (1 << 31) - 1),
        (Budget, "max_bytes", 0, 1, 1 << 60),
    ],
)
def test_options_outside_their_range(make, name, value, low, high):
    text = f"[{make.__name__}] expected {name} in [{low}, {high}], got {value}"
    assert_refused(ValueError, text, lambda: make(**{name: value}))


def test_negative_days_of_a_slot():
    text = "[Expiry] expected days of slot 2 in [0, 2147483647], got -3"
    assert_refused(ValueError, text, lambda: Expiry(slots={2: -3}))


def test_unknown_budget_policy():
    text = (
        "[Budget] expected policy 'refuse', 'evict_oldest' or 'evict_least_frequent', "
        "got 'evict_newest'"
    )
    assert_refused(ValueError, text, lambda: Budget(10_000, "evict_newest"))


def test_budget_below_one_row():
    least = 4096 + 4 * 16 * 2 + 64
    segment = Segment(16, Adagrad())
    text = (
        f"[TableConfig] expected a budget of at least {least} bytes, a table of one row, "
        f"got {least - 1} (table 'user')"
    )
    TableConfig("user", segment, budget=Budget(least))
    assert_refused(ValueError, text, lambda: TableConfig("user", segment, budget=Budget(least - 1)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("admission", "MinCount or SlidingFilter or Probabilistic"),
        ("expiry", "Expiry"),
        ("budget", "Budget"),
    ],
)
def test_rules_of_another_type(name, expected):
    text = f"[TableConfig] expected {name} as {expected}, got 3"
    assert_refused(TypeError, text, lambda: TableConfig("user", Segment(1), **{name: 3}))


def test_defaults_of_the_rules():
    assert MinCount() == MinCount(0, {}, 268_435_456, None)
    assert SlidingFilter() == SlidingFilter(0, {}, 300_000_000, 7)
    assert Probabilistic() == Probabilistic(0, {}, False)
    assert Expiry() == Expiry(36_500, {})
    assert Budget(1) == Budget(1, "refuse")


def test_configs_are_values():
    config = TableConfig(
        "user", Segment(1), admission=MinCount(1, {5: 2}), expiry=Expiry(3, {9: 1})
    )
    assert hash(config) == hash(dataclasses.replace(config))
    assert config == dataclasses.replace(config)
    assert config != dataclasses.replace(config, expiry=None)


@pytest.mark.parametrize(
    ("key", "slot"), [(0, 0), (-1, 32767), ((5 << 48) | 7, 5), (-(1 << 63), 0), (1 << 54, 64)]
)
def test_slot_is_bits_48_to_62(key, slot):
    assert slot_of(key) == slot


@pytest.mark.parametrize("capacity", [1, 3, 100])
def test_ring_counts_on_where_the_reference_system_saturates(capacity):
    ring = FilterRing(capacity, 10)
    assert [ring.add(key_hash(1), 1) for _ in range(20)] == list(range(20))


def passed(ring, keys, threshold):
    """Which of the keys are admitted, counted one by one."""
    return [ring.add(key_hash(key), 1) >= threshold for key in keys]


def test_ring_admits_from_its_threshold_on():
    ring, keys = FilterRing(100, 7), (1, 3 << 17, 1)
    runs = [passed(ring, keys, threshold=3) for _ in range(4)]
    assert runs == [[False] * 3, [False, False, True], [True, False, True], [True] * 3]


def test_ring_moves_its_head_when_a_filter_is_full():
    ring, restored = FilterRing(300, 100), FilterRing(300, 100)  # 3 keys each, left after 2
    keys = (1, 1 << 17, 2 << 17, 1)
    assert passed(ring, keys, threshold=2) == [False] * 4
    assert passed(ring, keys, threshold=2) == [True, False, False, True]
    assert (ring.head, ring.head_increment) == (4, 4)
    assert ring.num_elements == [2] * 4 + [0] * 96
    for row in ring.rows():
        restored.load(*row)
    assert passed(restored, keys, threshold=2) == passed(restored, keys, threshold=2) == [True] * 4


def test_ring_finds_counts_of_filters_behind_its_head():
    ring = FilterRing(300, 7)  # filters of 50 keys, left after 49
    ring.add(key_hash(1), 3)
    for key in range(100, 160):
        ring.add(key_hash(key), 1)
    assert ring.head == 1
    assert ring.add(key_hash(1), 2) == 3
    assert ring.add(key_hash(1), 1) == 5


def test_ring_without_a_free_cell_admits_and_counts():
    ring = FilterRing(1, 7)
    same_place = [(signature << 32) | 5 for signature in range(40)]
    results = [ring.add(each, 1) for each in same_place]
    assert results == [0] * 32 + [None] * 8
    assert ring.num_overflows == 8


def test_flags_that_are_no_bool():
    text = "[Probabilistic] expected equal_probability as bool, got 1"
    assert_refused(TypeError, text, lambda: Probabilistic(3, equal_probability=1))
    text = "[TableConfig] expected skip_zero as bool, got 1"
    assert_refused(
        TypeError, text, lambda: TableConfig("user", Segment(2), kind="serving", skip_zero=1)
    )
