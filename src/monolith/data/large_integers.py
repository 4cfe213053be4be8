"""Refuses integers beyond 64 bits in columns whose type is guessed: Arrow would round them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from monolith.data.columns import is_list
from monolith.errors import DataLossError

_LIMIT = 1 << 63
_MOST_DIGITS = 25  # int() refuses thousands


class _Integer(str):
    """The digits of an integer."""

    __slots__ = ()


def refuse_rounded(
    path: str, name: str, values: pa.ChunkedArray, cells: Callable[[], Iterable[Any]]
) -> None:
    """Refuse a column that is one of floats only because an integer is too large for int64.

    Args:
        path: names the file.
        name: names the column.
        values: what Arrow has made of the column.
        cells: give the numbers of the column as `integers_of_cells` does; read if one is large.

    Raises:
        DataLossError: all numbers are integers, and one is below -2^63 or above 2^63 - 1.
    """
    values = pc.list_flatten(values) if is_list(values.type) else values
    if not pa.types.is_float64(values.type) or not (pc.max(pc.abs(values)).as_py() or 0) >= _LIMIT:
        return
    try:
        numbers = list(cells())
    except json.JSONDecodeError:  # of an object over several lines, which Arrow reads
        return
    if not all(isinstance(each, _Integer) for each in numbers):
        return
    large = next((each for each in numbers if _is_large(each)), None)
    if large is not None:
        raise DataLossError(
            f"[data] {path!r}: expected integers of int64 in column {name!r}, got {large:.40}; "
            "name its type in types=: uint64 keeps the bits of ids below 2^64, float64 rounds"
        )


def _is_large(digits: _Integer) -> bool:
    return len(digits) > _MOST_DIGITS or not -_LIMIT <= int(digits) < _LIMIT


def _numbers(value: Any) -> Iterator[Any]:
    for each in value if isinstance(value, list) else [value]:
        if each is not None:
            yield each


def integers_of_cells(cells: pa.ChunkedArray) -> Iterator[Any]:
    """The numbers in cells of CSV, or in lists in them; integers as their digits."""
    for cell in cells.to_pylist():
        if cell is not None and cell.startswith("["):
            yield from _numbers(json.loads(cell, parse_int=_Integer))
        elif cell is not None:
            yield _Integer(cell) if re.fullmatch(r"\s*[+-]?[0-9]+\s*", cell) else cell


def integers_of_lines(lines: bytes, name: str) -> Iterator[Any]:
    """The numbers of a column of JSON lines, or in lists of it; integers as their digits."""
    for line in lines.splitlines():
        if line.strip():
            yield from _numbers(json.loads(line, parse_int=_Integer).get(name))
