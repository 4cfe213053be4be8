"""Sources without files: tables in memory, and synthetic samples."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples, Origin, to_block
from monolith.data.cursor import State
from monolith.data.order import mix, uniform

_BLOCK = 65_536  # samples


def as_table(frame: Any) -> pa.Table:
    """Return an Arrow table of a dict, or of a frame of pandas, polars or another Arrow producer.

    Raises:
        TypeError: the frame has another type.
    """
    if isinstance(frame, pa.Table):
        return _drop_views(frame)
    if type(frame).__module__.split(".")[0] == "pandas":
        return pa.Table.from_pandas(frame, preserve_index=False)
    if isinstance(frame, dict) or hasattr(frame, "__arrow_c_stream__"):  # polars, duckdb, Arrow
        return _drop_views(pa.table(frame))
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    raise TypeError(
        "[data.arrow_table] expected an Arrow table, a pandas or polars frame or a dict of "
        f"columns, got {type(frame).__name__}"
    )


def _drop_views(table: pa.Table) -> pa.Table:
    """Return a table with offsets instead of string views, which few functions of Arrow accept."""
    fields = [field.with_type(_drop_view(field.type)) for field in table.schema]
    schema = pa.schema(fields, table.schema.metadata)
    return table if schema == table.schema else table.cast(schema)


def _drop_view(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = kind.value_field.with_type(_drop_view(kind.value_type))
        return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return views.get(kind, kind)


@dataclass(frozen=True)
class TableSource:
    """Source of the rows of a table."""

    table: pa.Table
    columns: Columns
    bad: BadSamples

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [f"table: {self.table.num_rows} samples"]

    def open(self, epoch: int, state: State | None = None) -> "_RowCursor":
        """See `Stage`."""
        return _RowCursor(self, self.table.num_rows, 0 if state is None else state["row"])

    def read(self, first: int, count: int) -> pa.RecordBatch:
        """Return `count` rows from row `first` on, as a block."""
        names = list(dict.fromkeys(column for _, column in self.columns.sources()))
        rows = self.table.select(names).slice(first, count).combine_chunks().to_batches()[0]
        return to_block(rows, self.columns, Origin("table", first), self.bad)


@dataclass(frozen=True)
class SyntheticSource:
    """Source of synthetic samples: sample i is the same in every pass and on every machine.

    Ids have a Zipf-like frequency, and the label follows a hidden weight of each id.
    """

    num_samples: int
    num_features: int
    num_dense: int
    vocabulary: int
    ids_per_feature: int
    seed: int

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [repr(self)]

    def open(self, epoch: int, state: State | None = None) -> "_RowCursor":
        """See `Stage`."""
        return _RowCursor(self, self.num_samples, 0 if state is None else state["row"])

    def columns(self) -> Columns:
        """Return the columns `feature_0` ..., `dense_0` ... and `label`."""
        return Columns(
            [f"feature_{i}" for i in range(self.num_features)],
            [f"dense_{i}" for i in range(self.num_dense)],
            ["label"],
        )

    def read(self, first: int, count: int) -> pa.RecordBatch:
        """Return `count` samples from sample `first` on."""
        arrays: dict[str, pa.Array] = {}
        score = np.zeros(count)
        for i in range(self.num_features):
            drawn = uniform(
                count * self.ids_per_feature, self.seed, i, first=first * self.ids_per_feature
            )
            # Invert the distribution of x with density 1/x on [1, vocabulary + 1).
            ids = np.power(self.vocabulary + 1.0, drawn).astype(np.int64) - 1
            hidden = mix(ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(i))
            score += (hidden >> np.uint64(11)).reshape(count, -1).mean(axis=1) * 2.0**-52 - 1.0
            arrays[f"feature_{i}"] = pa.array(ids)
            if self.ids_per_feature > 1:
                splits = np.arange(0, len(ids) + 1, self.ids_per_feature, dtype=np.int32)
                arrays[f"feature_{i}"] = pa.ListArray.from_arrays(pa.array(splits), pa.array(ids))
        for i in range(self.num_dense):
            drawn = uniform(count, self.seed, self.num_features + i, first=first)
            arrays[f"dense_{i}"] = pa.array(drawn.astype(np.float32))
        chance = 1.0 / (1.0 + np.exp(-4.0 * score / max(1, self.num_features) ** 0.5))
        coin = uniform(count, self.seed, -1, first=first)
        arrays["label"] = pa.array((coin < chance).astype(np.float32))
        return pa.record_batch(arrays)


class _RowCursor:
    """Cursor over numbered rows."""

    def __init__(self, source: TableSource | SyntheticSource, num_rows: int, row: int) -> None:
        self._source, self._num_rows, self._row = source, num_rows, row

    def next(self) -> pa.RecordBatch | None:
        """See `Cursor`."""
        while self._row < self._num_rows:
            count = min(_BLOCK, self._num_rows - self._row)
            block = self._source.read(self._row, count)
            self._row += count
            if block.num_rows:
                return block
        return None

    def state(self) -> State:
        """See `Cursor`."""
        return {"row": self._row}

    def progress(self) -> tuple[int, int]:
        """See `Cursor`."""
        return self._row, self._num_rows

    def close(self) -> None:
        """Do nothing: no file is open."""
