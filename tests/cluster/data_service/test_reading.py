import pytest

from monolith.cluster.data_service.reading import Reading, check_state, digest_of
from monolith.cluster.job.job_values import share_of
from monolith.errors import AbortedError, FailedPreconditionError, InvalidArgumentError

NAMES = ["a", "b", "c"]


def shares(reading, reader, count):
    return [reading.take(reader).share for _ in range(count)]


@pytest.fixture
def reading():
    reading = Reading(NAMES, num_epochs=2)
    for reader in (1, 2):
        reading.join(reader)
    return reading


def test_shares_are_handed_out_in_order_epoch_after_epoch(reading):
    expected = [share_of(epoch, name) for epoch in range(2) for name in NAMES]
    assert shares(reading, 1, 6) == expected


def test_the_end_comes_when_nobody_has_a_share(reading):
    taken = shares(reading, 1, 6)
    assert reading.take(2).kind == "wait"
    reading.report(1, taken, {})
    assert reading.take(2).kind == "end"


def test_shares_of_a_reader_that_is_gone_go_on_where_it_was(reading):
    first, second = shares(reading, 1, 2)
    reading.report(1, [first], {second: {"batches": 4}})
    reading.leave(1)
    taken = reading.take(2)
    assert (taken.share, taken.position) == (second, {"batches": 4})
    assert reading.num_returned == 1


def test_a_reader_that_is_gone_is_refused(reading):
    reading.leave(1)
    reading.leave(1)
    for call in (lambda: reading.take(1), lambda: reading.report(1, [], {})):
        with pytest.raises(AbortedError, match="given up because it was silent"):
            call()


def test_a_reading_without_an_end_goes_on(reading):
    endless = Reading(["a"], num_epochs=-1)
    endless.join(1)
    assert shares(endless, 1, 3) == [share_of(epoch, "a") for epoch in range(3)]


def test_a_reading_goes_on_from_its_state(reading):
    first, second = shares(reading, 1, 2)
    reading.report(1, [first], {second: 7})
    rest = Reading(NAMES, 2, check_state(reading.state()))
    rest.join(5)
    taken = rest.take(5)
    assert (taken.share, taken.position) == (second, 7)
    assert rest.take(5).share == share_of(0, "c")


def test_a_state_of_other_shares_is_refused(reading):
    with pytest.raises(FailedPreconditionError, match="got other shares of it, 2 now"):
        Reading(["a", "b"], 2, reading.state())


@pytest.mark.parametrize(
    "change",
    [
        {"names": 1},
        {"next": -1},
        {"next": True},
        {"open": []},
        {"open": {"a": None}},
        {"other": 1},
    ],
)
def test_another_value_is_no_state(reading, change):
    with pytest.raises(InvalidArgumentError, match="expected names, next and open"):
        check_state({**reading.state(), **change})


def test_digests_differ_by_order():
    assert digest_of(["a", "b"]) != digest_of(["b", "a"])
