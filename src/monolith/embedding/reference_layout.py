"""What a row of the reference table holds, and how its columns are stored and exported."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.embedding import reference_codecs
from monolith.embedding.config import (
    TableConfig,
    segment_name,
    segments_of,
    state_columns,
    storage_of,
)
from monolith.embedding.reference_batch import Matrix, initial_weights
from monolith.embedding.rows import Rows

__all__ = ["ReferenceLayout"]


class ReferenceLayout:
    """Rows are float32 words: decoded weights of all segments, then state of any dtype.

    Args:
        config: of the table.
    """

    def __init__(self, config: TableConfig) -> None:
        self._config = config
        self.columns = _slices(config)
        self.width = max(at.stop for at in self.columns.values())
        self._dtypes = {name: column.dtype for name, column in state_columns(config)}
        self._storages = {
            f"weight/{segment_name(config, i)}": storage_of(config, i)
            for i in range(len(segments_of(config)))
        }

    def zeros(self, num_rows: int) -> Matrix:
        """Rows of zeros, (num_rows, width)."""
        return np.zeros((num_rows, self.width), np.float32)

    def fresh(self, keys: Sequence[int]) -> Matrix:
        """The rows that missing keys would get, (n, width); of a serving table, zeros."""
        config, rows = self._config, self.zeros(len(keys))
        if config.kind == "serving":
            return rows
        for i, segment in enumerate(segments_of(config)):
            weights = self.columns[f"weight/{segment_name(config, i)}"]
            rows[:, weights] = initial_weights(config, segment.initializer, keys, weights)
        initial = rows[:, : config.dim]
        initial[:] = reference_codecs.stored(config, keys, initial, call=0)
        for name, column in state_columns(config):
            self.column(rows, name)[:] = column.initial
        return rows

    def column(self, rows: Matrix, name: str) -> NDArray[Any]:
        """A column of rows as a view of its own dtype, (n, size)."""
        return rows[:, self.columns[name]].view(self._dtypes.get(name, "float32"))

    def decoded(self, name: str, column: torch.Tensor) -> NDArray[Any]:
        """The values of a column of an export."""
        if name in self._storages:
            dim = self.columns[name].stop - self.columns[name].start
            return reference_codecs.decode(column, self._storages[name], dim)
        values: NDArray[Any] = column.numpy()
        return values

    def exported(self, keys: Sequence[int], times: Sequence[int], values: Matrix) -> Rows:
        """Rows as exports have them."""
        return Rows(
            torch.from_numpy(np.array(keys, np.int64)),
            torch.from_numpy(np.array(times, np.int64)),
            {name: self._encoded(name, self.column(values, name)) for name in self.columns},
        )

    def _encoded(self, name: str, values: NDArray[Any]) -> torch.Tensor:
        if name in self._storages:
            return reference_codecs.encode(values, self._storages[name])
        return torch.from_numpy(values.copy())


def _slices(config: TableConfig) -> dict[str, slice]:
    """Where each column of an export lies in a row's 4-byte words, its weights decoded."""
    words = {f"weight/{segment_name(config, i)}": s.dim for i, s in enumerate(segments_of(config))}
    words.update({name: column.num_bytes // 4 for name, column in state_columns(config)})
    ends = np.cumsum(list(words.values())).tolist()
    return {name: slice(end - words[name], end) for name, end in zip(words, ends, strict=True)}
