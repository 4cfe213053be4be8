"""Parsing of the short texts that configure operations, such as `1:1.0,2:0.5`."""

from collections.abc import Callable, Sequence
from typing import Any


def integers(where: str, values: str | Sequence[int]) -> tuple[int, ...]:
    """Return the integers of a text such as `2,3,4`, or of a sequence.

    Raises:
        ValueError: a part is no integer.

    Example:
        >>> integers("[here]", "2, 3"), integers("[here]", "")
        ((2, 3), ())
    """
    if not isinstance(values, str):
        return tuple(int(value) for value in values)
    parts = [part.strip() for part in values.split(",")] if values.strip() else []
    return tuple(_read(where, int, part, values) for part in parts)


def entries(where: str, text: str, *kinds: Callable[[str], Any], least: int) -> list[list[Any]]:
    """Return the parts of entries such as `1:1.0,2:0.5`.

    Args:
        where: name of the caller, for messages.
        text: entries separated by commas, with parts separated by colons.
        kinds: types of the parts.
        least: least number of parts of an entry.

    Raises:
        ValueError: an entry has the wrong number of parts, or an invalid part.

    Example:
        >>> entries("[here]", "1:1.0,2:0.5", int, float, least=2)
        [[1, 1.0], [2, 0.5]]
    """
    rows = []
    for entry in text.split(",") if text.strip() else []:
        parts = entry.split(":")
        if not least <= len(parts) <= len(kinds):
            raise ValueError(
                f"{where} expected {least} to {len(kinds)} parts between colons, got {entry!r} "
                f"in {text!r}"
            )
        rows.append([_read(where, kind, p, text) for kind, p in zip(kinds, parts, strict=False)])
    return rows


def _read(where: str, kind: Callable[[str], Any], part: str, text: str) -> Any:
    try:
        return kind(part.strip())
    except ValueError as error:
        raise ValueError(f"{where} expected a number, got {part!r} in {text!r}") from error
