"""Comparisons of a column with constants: gt ge eq lt le neq between in not-in any all diff ..."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from monolith.data.hashing import hash_strings
from monolith.data.operations.sample_rows import Mask, Rows, positions_in, signed

Operand = int | float | str | Sequence[int | float | str]

_NUM_OPERANDS = MappingProxyType(
    {"gt": 1, "ge": 1, "eq": 1, "lt": 1, "le": 1, "neq": 1, "between": 2}
)
_MANY = ("in", "not-in")
_SETS = ("any", "all", "diff")
_TEXTS = ("startswith", "endswith")
_OPS = (*_NUM_OPERANDS, *_MANY, *_SETS, *_TEXTS)
_HASHED = ("eq", "neq", *_MANY)  # comparisons that work on the hash of a string
_WRONG_TYPE = "Filter values' type should be the same with field type."


def read_operands(path: str) -> tuple[int | float | str, ...]:
    """Return the operands in a file with a JSON number or string on each line.

    Raises:
        ValueError: a line has another value.
    """
    lines = [line for line in Path(path).read_text().splitlines() if line.strip()]
    try:
        values = tuple(json.loads(line) for line in lines)
    except json.JSONDecodeError as error:
        raise ValueError(f"[read_operands] expected JSON on each line of {path!r}") from error
    for value in values:
        if not isinstance(value, int | float | str):
            raise ValueError(
                f"[read_operands] expected a number or a string on each line of {path!r}, got "
                f"{value!r}"
            )
    return values


def operands_of(operand: Any) -> tuple[int | float | str, ...]:
    """Return an operand, or a sequence of operands, as a tuple."""
    return (operand,) if isinstance(operand, int | float | str) else tuple(operand)


@dataclass(frozen=True)
class Comparison:
    """Compares every value of a column with constants.

    Args:
        where: name of the caller, for messages.
        op: name of the comparison. `gt ge eq lt le neq` take one operand, `between` takes two (from
            the first, below the second), `in` and `not-in` take many. `any`, `all` and `diff` test
            whether the ids of a sample contain one, every one or none of many operands.
            `startswith` and `endswith` take many strings.
        operands: numbers or strings.

    Raises:
        ValueError: the op is unknown, or the number of operands is wrong.

    Example:
        >>> Comparison("[here]", "between", (1, 2))(pa.array([0, 1, 2])).tolist()
        [False, True, False]
    """

    where: str = field(repr=False)
    op: str
    operands: tuple[int | float | str, ...] = field(repr=False)
    digest: str = field(init=False)
    _arrays: dict[str, pa.Array] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.op not in _OPS:
            raise ValueError(f"{self.where} expected an op of {' '.join(_OPS)}, got {self.op!r}")
        count = _NUM_OPERANDS.get(self.op)
        if count is not None and len(self.operands) != count:
            raise ValueError(
                f"{self.where} expected {count} operand{'s'[: count - 1]} of {self.op!r}, got "
                f"{len(self.operands)}"
            )
        text = repr(self.operands)
        digest = text if len(text) < 80 else hashlib.sha256(text.encode()).hexdigest()[:16]
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "_arrays", {})

    def __call__(self, array: pa.Array, *, keep_empty: bool = False) -> Mask:
        """Return whether the comparison holds for each sample.

        Args:
            array: column to compare. Lists of one value count as the value, except for `any`,
                `all`, `diff`.
            keep_empty: the result for a sample without a value, or with several values for a
                single-value op.

        Raises:
            TypeError: the op does not fit the column.
            ValueError: the operands do not fit the op.
        """
        if self.op in _SETS:
            return self._set(array, keep_empty)
        if isinstance(array, pa.FixedSizeListArray) and array.type.list_size == 1:
            array = array.flatten()
        if not isinstance(array, pa.ListArray):
            return self._mask(array)
        is_one = array.value_lengths().to_numpy() == 1
        answers = np.full(len(array), keep_empty)
        answers[is_one] = self._mask(array.filter(pa.array(is_one)).flatten())
        return answers

    def _set(self, array: pa.Array, keep_empty: bool) -> Mask:
        rows = Rows.of(self.where, pa.record_batch({"values": array}), "values")
        known = np.unique(np.array(self._operand_array(pa.int64()).to_numpy(), np.int64))
        places = positions_in(rows.values, known.tolist())
        if self.op == "all":
            answers = covers(rows.samples, places, len(known), len(rows))
        else:
            answers = rows.any(places >= 0) ^ (self.op == "diff")
        return np.where(rows.is_empty(), keep_empty, answers)

    def _mask(self, values: pa.Array) -> Mask:
        answers = self._text(values) if self.op in _TEXTS else self._compare(values)
        mask: Mask = answers.to_numpy(zero_copy_only=False)
        return mask

    def _text(self, values: pa.Array) -> pa.Array:
        if not _is_text(values.type):
            raise TypeError(
                f"{self.where} expected a column of strings for {self.op!r}, got type "
                f"{values.type}; blocks hold hashes of strings: ask before they are hashed"
            )
        ask = pc.starts_with if self.op == "startswith" else pc.ends_with
        answers = pa.array(np.zeros(len(values), np.bool_))
        for operand in self.operands:
            answers = pc.or_(answers, ask(values, pattern=str(operand)))
        return answers

    def _compare(self, values: pa.Array) -> pa.Array:
        operands = self._operand_array(values.type)
        if self.op in _MANY:
            is_in = pc.is_in(values, value_set=operands)
            return pc.invert(is_in) if self.op == "not-in" else is_in
        if self.op == "between":
            return pc.and_(pc.greater_equal(values, operands[0]), pc.less(values, operands[1]))
        functions = {
            "gt": pc.greater,
            "ge": pc.greater_equal,
            "eq": pc.equal,
            "lt": pc.less,
            "le": pc.less_equal,
            "neq": pc.not_equal,
        }
        return functions[self.op](values, operands[0])

    def _operand_array(self, kind: pa.DataType) -> pa.Array:
        key = str(kind)
        if key not in self._arrays:
            self._arrays[key] = self._make_operand_array(kind)
        return self._arrays[key]

    def _make_operand_array(self, kind: pa.DataType) -> pa.Array:
        is_hashed = pa.types.is_integer(kind) and self.op in _HASHED
        if is_hashed and all(isinstance(operand, str) for operand in self.operands):
            return pa.array(hash_strings(pa.array(self.operands, pa.string())))
        expected: tuple[type, ...] = (int, float)
        if pa.types.is_integer(kind):
            expected = (int,)
        elif _is_text(kind):
            expected = (str,)
        for operand in self.operands:
            if not isinstance(operand, expected):
                raise ValueError(
                    f"{self.where} {_WRONG_TYPE} Got {operand!r} for a column of {kind}"
                )
        if pa.types.is_integer(kind):  # people write fids as unsigned numbers
            return pa.array(signed([int(operand) for operand in self.operands]), kind)
        return pa.array(self.operands, kind)


def covers(samples: Any, places: Any, num_known: int, num_samples: int) -> Mask:
    """Return whether each sample has every one of some ids.

    Args:
        samples: number of the sample of each value.
        places: place of each value among the ids, or -1 for another value.
        num_known: number of ids.
        num_samples: number of samples of the block.
    """
    is_known = places >= 0
    pairs = np.unique(samples[is_known] * num_known + places[is_known])
    mask: Mask = np.bincount(pairs // max(1, num_known), minlength=num_samples) == num_known
    return mask


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
