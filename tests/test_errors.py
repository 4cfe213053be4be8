import inspect

import pytest

from monolith import errors

OP_ERRORS = {
    "OutOfRangeError": (),
    "NotFoundError": (FileNotFoundError,),
    "AbortedError": (),
    "CancelledError": (),
    "DeadlineExceededError": (),
    "UnavailableError": (),
    "DataLossError": (),
    "FailedPreconditionError": (),
    "InvalidArgumentError": (ValueError,),
}


@pytest.mark.parametrize(("name", "also"), OP_ERRORS.items())
def test_op_errors_have_exactly_these_bases(name, also):
    assert getattr(errors, name).__bases__ == (errors.OpError, *also)


def test_errors_of_queues_are_special_cases_of_others():
    bases = (errors.OutOfRangeError, errors.CancelledError)
    assert errors.EndOfQueueError.__bases__ == bases
    assert errors.QueueFullError.__bases__ == (errors.DeadlineExceededError,)


def test_op_error_is_a_monolith_error_and_a_runtime_error():
    assert errors.OpError.__bases__ == (errors.MonolithError, RuntimeError)


def test_every_class_of_the_module_hangs_below_the_base():
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass)]
    assert all(issubclass(cls, errors.MonolithError) for cls in classes)


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_prints_its_message(name):
    assert str(getattr(errors, name)("[Table.load] no file")) == "[Table.load] no file"


def test_the_tree_at_the_top_names_every_class():
    assert all(name in errors.__doc__ for name in errors.__all__)
