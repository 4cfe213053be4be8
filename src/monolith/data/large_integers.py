"""Refusal of integers beyond 64 bits in columns of guessed type, because Arrow would round them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from monolith.data.columns import is_list
from monolith.errors import DataLossError

_LIMIT = 1 << 63
_MOST_DIGITS = 25  # int() refuses texts of thousands of digits


class _Integer(str):
    """The digits of an integer."""

    __slots__ = ()


def refuse_rounded(
    path: str, name: str, values: pa.ChunkedArray, cells: Callable[[], Iterable[Any]]
) -> None:
    """Refuse a column of floats whose numbers are integers, one of them too large for int64.

    Args:
        path: path of the file, for messages.
        name: name of the column, for messages.
        values: the column as Arrow converted it.
        cells: function that returns the numbers as `integers_of_cells` does; called if a number is
            large.

    Raises:
        DataLossError: all numbers are integers, and one is below -2^63 or above 2^63 - 1.
    """
    values = pc.list_flatten(values) if is_list(values.type) else values
    if not pa.types.is_float64(values.type) or not (pc.max(pc.abs(values)).as_py() or 0) >= _LIMIT:
        return
    try:
        numbers = list(cells())
    except json.JSONDecodeError:  # an object over several lines, which Arrow accepts
        return
    if not all(isinstance(number, _Integer) for number in numbers):
        return
    large = next((number for number in numbers if _is_large(number)), None)
    if large is not None:
        raise DataLossError(
            f"[data] {path!r}: expected integers of int64 in column {name!r}, got {large:.40}; "
            "name its type in types=: uint64 keeps the bits of ids below 2^64, float64 rounds"
        )


def _is_large(digits: _Integer) -> bool:
    return len(digits) > _MOST_DIGITS or not -_LIMIT <= int(digits) < _LIMIT


def _numbers(value: Any) -> Iterator[Any]:
    for number in value if isinstance(value, list) else [value]:
        if number is not None:
            yield number


def integers_of_cells(cells: pa.ChunkedArray) -> Iterator[Any]:
    """Yield the numbers in cells of CSV, or in lists in these cells; integers as `_Integer`."""
    for cell in cells.to_pylist():
        if cell is not None and cell.startswith("["):
            yield from _numbers(json.loads(cell, parse_int=_Integer))
        elif cell is not None:
            yield _Integer(cell) if re.fullmatch(r"\s*[+-]?[0-9]+\s*", cell) else cell


def integers_of_lines(lines: bytes, name: str) -> Iterator[Any]:
    """Yield the numbers of a column of JSON lines, or of lists in it; integers as `_Integer`."""
    for line in lines.splitlines():
        if line.strip():
            yield from _numbers(json.loads(line, parse_int=_Integer).get(name))
