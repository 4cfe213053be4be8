"""Turn one value or several into the list that a function needs."""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

_Value = TypeVar("_Value")


def to_list(x: Any) -> list[Any]:
    """A list as it is; anything else, a tuple too, as the only element of one.

    Example:
        >>> to_list([1]), to_list((1, 2))
        ([1], [(1, 2)])
    """
    return x if isinstance(x, list) else [x]


def extend_as_list(x: Any, n: int) -> list[Any] | tuple[Any, ...]:
    """Make `n` values of a list, a tuple or one value.

    Returns:
        A list or tuple that is long enough as it is, a shorter one as a list with None at its end,
        and one value as a list of it and of deep copies, or of itself where it cannot be copied.

    Example:
        >>> extend_as_list([1], 3), extend_as_list(7, 2)
        ([1, None, None], [7, 7])
    """
    if isinstance(x, list | tuple):
        return x if len(x) >= n else [*x, *[None] * (n - len(x))]
    try:
        return [x, *(copy.deepcopy(x) for _ in range(n - 1))][:n]
    except Exception:  # each type has its own way to say that it cannot be copied
        return [x] * n


def check_list(
    candidate: _Value, length_checker: Callable[[int], bool], could_be_none: bool = False
) -> _Value:
    """Return a list, if its length passes a check.

    Args:
        candidate: the list.
        length_checker: whether a length is right.
        could_be_none: whether None passes as well.

    Raises:
        TypeError: it is no list.
        ValueError: its length does not pass.

    Example:
        >>> check_list([1, 2], lambda length: length == 2)
        [1, 2]
    """
    if candidate is None and could_be_none:
        return candidate
    if not isinstance(candidate, list):
        expected = "a list or None" if could_be_none else "a list"
        raise TypeError(f"[check_list] expected {expected}, got {type(candidate).__name__}")
    if not length_checker(len(candidate)):
        raise ValueError(
            "[check_list] expected a list whose length passes the check, "
            f"got one of length {len(candidate)}"
        )
    return candidate
