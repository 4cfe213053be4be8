"""Summaries of the columns of files."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MAX_DISTINCT = 5_000_000


@dataclass
class ColumnSummary:
    """Summary of one column.

    Args:
        name: name of the column.
        kind: type of the column in the file.
        num_samples: number of samples.
        num_missing: number of samples without a value.
        num_values: number of values in all lists.
        max_length: length of the longest list; 1 without lists.
        low: least number.
        high: greatest number.
        num_numbers: number of floating-point values that are not NaN.
        total: sum of these values.
    """

    name: str
    kind: str
    num_samples: int = 0
    num_missing: int = 0
    num_values: int = 0
    max_length: int = 0
    low: float | None = None
    high: float | None = None
    num_numbers: int = 0
    total: float = 0.0
    _counts: "Counter[Any]" = field(default_factory=Counter, repr=False)
    _is_cut: bool = False

    def add(self, array: pa.Array) -> None:
        """Count the values of a block."""
        self.num_samples += len(array)
        self.num_missing += array.null_count
        if hasattr(array, "flatten") and hasattr(array.type, "value_type"):
            if pa.types.is_dictionary(array.type):
                array = array.dictionary_decode()
            else:
                longest = pc.max(pc.list_value_length(array)).as_py() or 0
                self.max_length = max(self.max_length, longest)
                array = array.flatten()
        array = array.drop_null()
        self.num_values += len(array)
        if len(array) == 0:
            return
        self.max_length = max(self.max_length, 1)
        if pa.types.is_floating(array.type):
            self._add_numbers(array)
        elif not pa.types.is_nested(array.type):
            self._add_ids(array)

    def _add_numbers(self, array: pa.Array) -> None:
        numbers = array.to_numpy(zero_copy_only=False).astype(np.float64)
        numbers = numbers[~np.isnan(numbers)]
        self.num_numbers += len(numbers)
        if len(numbers) == 0:
            return
        low, high = float(numbers.min()), float(numbers.max())
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        self.total += float(numbers.sum())

    def _add_ids(self, array: pa.Array) -> None:
        counted = pc.value_counts(array)
        values, counts = counted.field("values").to_pylist(), counted.field("counts").to_pylist()
        is_known = self._counts.__contains__
        for value, count in zip(values, counts, strict=True):
            if len(self._counts) < _MAX_DISTINCT or is_known(value):
                self._counts[value] += count
            else:
                self._is_cut = True

    @property
    def num_distinct(self) -> int | None:
        """Number of different values; None for floats. A lower bound if `is_cut`."""
        return len(self._counts) if self._counts else None

    @property
    def mean(self) -> float | None:
        """Mean of the numbers; None without numbers."""
        return self.total / self.num_numbers if self.num_numbers else None

    @property
    def is_cut(self) -> bool:
        """Whether there were more different values than the summary counts."""
        return self._is_cut

    def top(self, count: int) -> list[tuple[Any, int]]:
        """Return the most frequent values with their frequencies."""
        return self._counts.most_common(count)

    def as_dict(self, num_top: int) -> dict[str, Any]:
        """Return the summary as an object for JSON."""
        return {
            "name": self.name,
            "type": self.kind,
            "samples": self.num_samples,
            "missing": self.num_missing,
            "values": self.num_values,
            "max_length": self.max_length,
            "distinct": self.num_distinct,
            "is_lower_bound": self.is_cut,
            "min": self.low,
            "max": self.high,
            "mean": self.mean,
            "top": [[value, times] for value, times in self.top(num_top)],
        }


def summarize(schema: pa.Schema) -> dict[str, ColumnSummary]:
    """Return empty summaries of the columns, to be filled by `ColumnSummary.add`."""
    return {field.name: ColumnSummary(field.name, str(field.type)) for field in schema}
