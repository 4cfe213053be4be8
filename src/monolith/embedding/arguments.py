"""Types of arguments: one place for the texts with which constructors and verbs refuse them.

`where` starts a message, as in "[Segment]"; `which` ends it, as in " (table 'user')".
"""

import math
import operator
from collections.abc import Iterable
from typing import Any

__all__ = ["as_integer", "as_list", "check_kind", "check_number"]


def as_integer(where: str, name: str, value: Any, which: str = "") -> int:
    """The value as an int; takes numpy's integers and tensors of one integer too."""
    try:
        return operator.index(value)
    except (TypeError, RuntimeError) as error:  # RuntimeError: a tensor without storage
        raise TypeError(f"{where} expected {name} as an integer, got {value!r}{which}") from error


def check_number(where: str, name: str, value: Any, which: str = "") -> None:
    """Refuse what is no real number; its range is the caller's matter."""
    try:
        math.isfinite(value)  # unlike float(), it takes no str
    except OverflowError:
        pass  # an int beyond every float: a number
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{where} expected {name} as a number, got {value!r}{which}") from error


def as_list(where: str, name: str, values: Iterable[Any], which: str = "") -> list[Any]:
    """The values of a sequence, a tensor or an iterator."""
    try:
        return list(values)
    except TypeError as error:
        raise TypeError(f"{where} expected {name} as a sequence, got {values!r}{which}") from error


def check_kind(where: str, name: str, value: Any, *kinds: type, which: str = "") -> None:
    """Refuse what is of none of the classes."""
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{where} expected {name} as {expected}, got {value!r}{which}")
