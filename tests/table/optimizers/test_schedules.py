import pytest

from monolith.table.optimizers import LearningRateFunction, PolynomialDecay

MAX = "3.40282e+38"


def test_polynomial_decay_vectors():
    schedule = PolynomialDecay(0.01, 10, 0.11)
    assert [schedule(1), schedule(2)] == pytest.approx([0.02, 0.03])
    assert [schedule(0), schedule(10), schedule(99)] == pytest.approx([0.01, 0.11, 0.11])


def test_power_bends_the_line():
    assert PolynomialDecay(1.0, 10, 0.0, power=2)(5) == 0.25


def test_a_cycle_stretches_the_line_to_the_next_multiple():
    schedule = PolynomialDecay(1.0, 10, 0.0, cycle=True)
    assert [schedule(step) for step in (0, 5, 10, 11, 15, 20)] == pytest.approx(
        [1.0, 0.5, 0.0, 0.45, 0.25, 0.0]
    )


def test_the_base_gives_no_rate():
    with pytest.raises(NotImplementedError):
        LearningRateFunction()(0)


def test_equal_schedules_compare_equal_and_print_the_same():
    first, second = PolynomialDecay(0.0, 10, 0.1), PolynomialDecay(0.0, 10, 0.1)
    assert first == second
    assert str(first) == str(second)
    assert first != PolynomialDecay(0.0, 11, 0.1)
    assert str(first) != str(PolynomialDecay(0.0, 10, 0.1, name="other"))


def test_a_cycle_that_is_no_bool_is_refused():
    with pytest.raises(TypeError, match=r"^\[PolynomialDecay\] expected cycle as bool, got 1$"):
        PolynomialDecay(0.0, 10, 0.1, cycle=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((-1.0, 10), f"initial_learning_rate in [0, {MAX}], got -1.0"),
        ((1.0, 10, 1e39), f"end_learning_rate in [0, {MAX}], got 1e+39"),
        ((1.0, 0), "decay_steps >= 1, got 0"),
        ((1.0, 10, 0.1, 0), f"power in (0, {MAX}], got 0"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        PolynomialDecay(*options)
    assert str(caught.value) == f"[PolynomialDecay] expected {text}"
