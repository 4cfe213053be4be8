"""Values of settings: from the text of a flag or variable, and from what a file holds."""

import contextlib
import enum
import types
from typing import Any, Literal, Union, get_args, get_origin

__all__ = ["converted", "is_known", "name_of"]

_TRUE, _FALSE = ("true", "1"), ("false", "0")


def is_known(hint: Any) -> bool:
    """Whether values of a type can be read.

    Example:
        >>> is_known(int | None), is_known(list[tuple[int, str]]), is_known(complex)
        (True, False, False)
    """
    members = _members(hint)
    if members:
        return all(map(is_known, members))
    if get_origin(hint) in (list, tuple):
        return all(each is ... or _is_plain(each) for each in get_args(hint))
    return _is_plain(hint)


def _is_plain(hint: Any) -> bool:
    is_enum = isinstance(hint, type) and issubclass(hint, enum.Enum)
    return hint in (bool, int, float, str) or get_origin(hint) is Literal or is_enum


def name_of(hint: Any) -> str:
    """A type in words, for messages.

    Example:
        >>> name_of(list[int]), name_of(Literal["a", "b"]), name_of(bool | None)
        ('a list of int', "one of 'a', 'b'", 'true or false, or none')
    """
    members = _members(hint)
    if members:
        return ", or ".join([name_of(each) for each in members] + ["none"] * _takes_none(hint))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if get_origin(hint) in (list, tuple):
        kinds = [name_of(each) for each in get_args(hint) if each is not ...]
        return f"a list of {', '.join(kinds)}"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return f"one of {', '.join(repr(member.name) for member in hint)}"
    return "true or false" if hint is bool else str(hint.__name__)


def converted(hint: Any, value: Any, *, is_text: bool) -> Any:
    """A value as the type wants it.

    Args:
        hint: for which `is_known` is true.
        value: text, or what a file holds.
        is_text: the value is text of a flag or variable. Lists are separated by commas there, and
            numbers are text; in a file they are lists and numbers.

    Raises:
        ValueError: it is no such value.

    Example:
        >>> converted(list[int], "1,2_000", is_text=True), converted(int | None, 5, is_text=False)
        ([1, 2000], 5)
    """
    members = _members(hint)
    if members:
        is_none = value is None or (isinstance(value, str) and value.lower() == "none")
        return None if is_none and _takes_none(hint) else _first_of(members, value, is_text)
    if get_origin(hint) in (list, tuple):
        return _list(hint, value, is_text)
    if get_origin(hint) is Literal:
        return _choice([(choice, choice) for choice in get_args(hint)], value, is_text)
    if issubclass(hint, enum.Enum):
        pairs = [(key, member) for member in hint for key in (member.name, member.value)]
        return _choice(pairs, value, is_text)
    return _plain(hint, value, is_text)


def _members(hint: Any) -> list[Any]:
    """`int` and `str` of `int | str | None`; none of other types."""
    is_union = get_origin(hint) in (Union, types.UnionType)
    return [each for each in get_args(hint) if each is not type(None)] if is_union else []


def _takes_none(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _first_of(members: list[Any], value: Any, is_text: bool) -> Any:
    """As the first of several types that takes the value."""
    for member in members[:-1]:
        with contextlib.suppress(ValueError):
            return converted(member, value, is_text=is_text)
    return converted(members[-1], value, is_text=is_text)


def _list(hint: Any, value: Any, is_text: bool) -> Any:
    if is_text:
        value = [part.strip() for part in value.split(",")] if value.strip() else []
    kinds = get_args(hint)
    if not isinstance(value, list):
        raise ValueError("not a list")
    if get_origin(hint) is list or kinds[-1] is ...:
        kinds = (kinds[0],) * len(value)
    items = [
        converted(kind, item, is_text=is_text) for kind, item in zip(kinds, value, strict=True)
    ]
    return items if get_origin(hint) is list else tuple(items)


def _choice(pairs: list[tuple[Any, Any]], value: Any, is_text: bool) -> Any:
    for key, choice in pairs:
        if (is_text and str(key) == value) or (type(key) is type(value) and key == value):
            return choice
    raise ValueError("not a choice")


def _plain(hint: Any, value: Any, is_text: bool) -> Any:
    if hint is str and isinstance(value, str):
        return value
    if is_text and hint is bool:
        return _choice([(word, word in _TRUE) for word in _TRUE + _FALSE], value.lower(), is_text)
    if is_text:
        return hint(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is float and is_number:
        return float(value)
    if type(value) is hint:
        return value
    raise ValueError("another type")
