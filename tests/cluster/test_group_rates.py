import pytest

from monolith.cluster.table_group import GroupRates
from monolith.table import Segment, TableConfig
from monolith.table.optimizers import SGD, PolynomialDecay


class Schedule:
    """A rate that follows the step, and how often it was asked for."""

    def __init__(self, rate=1.0):
        self.rate, self.num_asked = rate, 0

    def __call__(self, step):
        self.num_asked += 1
        return self.rate * step


class WithoutHash(Schedule):
    def __eq__(self, other):  # Python then takes the hash away
        return True


def rates_of(*rates):
    """Rates of tables "a", "b" and so on, with a segment for each of their rates."""
    segments = [[Segment(1, SGD(rate)) for rate in own] for own in rates]
    return GroupRates([TableConfig(n, own) for n, own in zip("abcd", segments, strict=False)])


def test_a_schedule_of_many_segments_is_asked_once_a_step():
    schedule, other = Schedule(), Schedule(2.0)
    rates = rates_of([schedule, 0.5], [schedule], [other], [schedule])
    assert rates.at(3) == [3.0, 0.5, 3.0, 6.0, 3.0]
    assert (schedule.num_asked, other.num_asked) == (1, 1)


def test_equal_schedules_are_one(monkeypatch):
    asked, call = [], PolynomialDecay.__call__
    monkeypatch.setattr(
        PolynomialDecay, "__call__", lambda self, step: asked.append(step) or call(self, step)
    )
    rates = rates_of(*[[PolynomialDecay(1.0, 2, 0.0)] for _ in range(4)])
    assert rates.at(1) == [0.5] * 4
    assert asked == [1]


def test_schedules_without_a_hash_are_apart():
    assert rates_of([WithoutHash(1.0)], [WithoutHash(2.0)]).at(3) == [3.0, 6.0]


def test_given_rates_leave_the_numbers_of_the_next_call():
    rates = rates_of([0.5], [0.25])
    assert rates.at(0, {"b": [2.0]}) == [0.5, 2.0]
    assert rates.at(0) == [0.5, 0.25]


def test_a_bad_schedule_that_tables_share_names_one_whose_rate_is_not_given():
    schedule = Schedule(-1.0)
    rates = rates_of([schedule], [schedule], [schedule])
    text = r"expected learning rates in .*, got -3.0 \(table 'b'\)"
    with pytest.raises(ValueError, match=text):
        rates.at(3, {"a": [1.0]})
    assert rates.at(3, {name: [1.0] for name in "abc"}) == [1.0] * 3
