"""The small texts in which operations are configured, such as `1:1.0,2:0.5`."""

from collections.abc import Callable, Sequence
from typing import Any


def integers(where: str, given: str | Sequence[int]) -> tuple[int, ...]:
    """Integers of a text such as `2,3,4`, or as they are.

    Raises:
        ValueError: a part is no integer.

    Example:
        >>> integers("[here]", "2, 3"), integers("[here]", "")
        ((2, 3), ())
    """
    if not isinstance(given, str):
        return tuple(int(each) for each in given)
    parts = [part.strip() for part in given.split(",")] if given.strip() else []
    return tuple(_read(where, int, part, given) for part in parts)


def entries(where: str, text: str, *kinds: Callable[[str], Any], least: int) -> list[list[Any]]:
    """The parts of entries such as `1:1.0,2:0.5`.

    Args:
        where: for messages.
        text: entries separated by commas, their parts by colons.
        kinds: of the parts.
        least: parts that an entry must have.

    Raises:
        ValueError: an entry has another number of parts, or one that cannot be read.

    Example:
        >>> entries("[here]", "1:1.0,2:0.5", int, float, least=2)
        [[1, 1.0], [2, 0.5]]
    """
    found = []
    for entry in text.split(",") if text.strip() else []:
        parts = entry.split(":")
        if not least <= len(parts) <= len(kinds):
            raise ValueError(
                f"{where} expected {least} to {len(kinds)} parts between colons, got {entry!r} "
                f"in {text!r}"
            )
        found.append([_read(where, kind, p, text) for kind, p in zip(kinds, parts, strict=False)])
    return found


def _read(where: str, kind: Callable[[str], Any], part: str, text: str) -> Any:
    try:
        return kind(part.strip())
    except ValueError as error:
        raise ValueError(f"{where} expected a number, got {part!r} in {text!r}") from error
