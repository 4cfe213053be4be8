import pytest

from monolith.cli.user_errors import TASK_MODULE, text_of_mistake
from monolith.errors import NotFoundError


def raised(error, name):
    """The error, as the module of this name raises it."""
    try:
        exec("def loss(error):\n    raise error\nloss(error)", {"__name__": name, "error": error})
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("[Embedded] got 'usr'"), "[Embedded] got 'usr'"),
        (KeyError(7), "KeyError: 7"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (NotFoundError("no such file"), "no such file"),
    ],
)
def test_a_mistake_of_a_task_is_told_with_its_line(error, text):
    told = text_of_mistake(raised(error, f"{TASK_MODULE}clicks"))
    first, place, _ = told.splitlines()
    assert first == text
    assert place.startswith("  <string>, line 2, in loss: ")


@pytest.mark.parametrize(
    ("error", "text"), [(ValueError("expected x"), "expected x"), (KeyError("x"), None)]
)
def test_elsewhere_what_is_no_mistake_of_a_user_is_not_told(error, text):
    assert text_of_mistake(raised(error, "monolith.train")) == text
