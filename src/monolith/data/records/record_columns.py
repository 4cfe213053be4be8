"""Columns of decoded records: the request to the core, and Arrow arrays on its memory."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from monolith.data.columns import Columns, DenseColumn, IdColumn, Label
from monolith.ops.compiled import load_native

# Numbers of `PbType` of the reference system, without tf.train.Example.
RECORD_TYPES = MappingProxyType({"instance": 1, "example_batch": 2, "example": 3, "tf_example": 4})
_WEIGHT_FILL = 1.0


@dataclass(frozen=True, slots=True)
class _Spec:
    """One column; the core takes the fields in this order."""

    name: str
    is_ids: bool
    width: int = 1
    fill: float | None = None
    takes_first: bool = False
    is_one_each: bool = False

    def row(self) -> tuple[Any, ...]:
        return (
            self.name,
            self.is_ids,
            self.width,
            self.fill,
            self.takes_first,
            self.is_one_each,
        )


class RecordColumns:
    """Columns that records have to give to a source.

    Raises:
        ValueError: one column of the records has two meanings.
    """

    def __init__(self, columns: Columns) -> None:
        specs: dict[str, _Spec] = {}
        requests = [_id_spec(column) for column in columns.id_columns]
        floats = (*columns.dense_columns, *columns.label_columns)
        requests += [_float_spec(column) for column in floats]
        if columns.weight is not None:
            requests.append(_Spec(columns.weight, False, fill=_WEIGHT_FILL))
        if columns.time is not None:
            requests.append(_Spec(columns.time, True, is_one_each=True))
        for spec in requests:
            if specs.setdefault(spec.name, spec) != spec:
                raise ValueError(
                    f"[data] expected column {spec.name!r} of records in one way, got two: ids or "
                    "numbers, one width, one fill"
                )
        self._specs = list(specs.values())
        self._has_width = {
            column.column or column.name for column in floats if column.width is not None
        }

    def decoder(
        self, kind: str, flags: int, *, max_bytes: int, keeps_fid_v1: bool, skips: bool
    ) -> Any:
        """Return the core's decoder of records of one type."""
        rows = [spec.row() for spec in self._specs]
        return load_native().RecordDecoder(
            rows, RECORD_TYPES[kind], flags, max_bytes, keeps_fid_v1, skips
        )

    def rows(self, block: Any) -> pa.RecordBatch:
        """Return the rows of a block of the core, on its memory, without bad rows."""
        num_rows = block.num_rows
        arrays = {
            spec.name: self._array(spec, block, num_rows, *buffers)
            for spec, buffers in zip(self._specs, block.buffers(), strict=True)
        }
        rows = pa.record_batch(arrays) if arrays else pa.record_batch({})
        bad = [row for _, _, row, _, _ in block.bad if row >= 0]
        if not bad:
            return rows
        keep = np.ones(num_rows, np.bool_)
        keep[bad] = False
        return self._single(rows.filter(pa.array(keep)))

    def _array(
        self,
        spec: _Spec,
        block: Any,
        num_rows: int,
        values: int,
        splits: int,
        count: int,
        one: bool,
    ) -> pa.Array:
        if not spec.is_ids:
            flat = _array_on_memory(pa.float32(), count, values, block)
            if spec.name in self._has_width:
                return pa.FixedSizeListArray.from_arrays(flat, spec.width)
            return flat
        flat = _array_on_memory(pa.int64(), count, values, block)
        if one:
            return flat
        offsets = _array_on_memory(pa.int32(), num_rows + 1, splits, block)
        return pa.ListArray.from_arrays(offsets, flat)

    def _single(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert lists of one number to numbers, after rows with none or several are removed."""
        for spec in self._specs:
            array = rows.column(spec.name)
            if spec.is_one_each and isinstance(array, pa.ListArray):
                at = rows.schema.get_field_index(spec.name)
                rows = rows.set_column(at, spec.name, array.flatten())
        return rows


def _id_spec(column: IdColumn) -> _Spec:
    return _Spec(column.column or column.name, True)


def _float_spec(column: DenseColumn) -> _Spec:
    return _Spec(
        column.column or column.name,
        False,
        column.width or 1,
        column.fill,
        takes_first=isinstance(column, Label),
    )


def _array_on_memory(kind: pa.DataType, count: int, address: int, owner: Any) -> pa.Array:
    size = count * kind.bit_width // 8
    memory = pa.foreign_buffer(address, size, owner) if size else pa.py_buffer(b"")
    return pa.Array.from_buffers(kind, count, [None, memory])
